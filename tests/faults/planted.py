"""Defects that somebody might put into the package, each with the tests of this suite that are to catch it.

Data alone: planted_run.py applies them to copies of the package, test_planted.py keeps the list true.
"""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """One defect.

    file: below edcache/. old: text that stands there exactly once; new: what takes its place.
    tests: what pytest is told to run, files or names of tests. keyword: its -k, which chooses among them.
    seconds: about what they take on a quiet machine where nothing is wrong. scale: EDCACHE_TEST_SCALE.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    keyword: str = ""
    seconds: int = 5
    scale: float = 0.2


CRASHES = "test_crash_states.py"
KILLED = f"{CRASHES}::test_a_process_that_is_killed_anywhere_loses_nothing_published"
POWER_CUT = f"{CRASHES}::test_a_power_cut_leaves_what_was_synced_and_no_wrong_byte"
RECOVERY = f"{CRASHES}::test_a_recovery_may_crash_itself_three_times_over"
INTERRUPTS = "test_interrupts.py::test_an_interrupt_at_any_instruction_leaves_all_as_it_was_or_done"
BEHIND = "test_behind_seal.py::test_labels_are_those_of_a_model_and_of_a_new_seal_for_each_change"
ERRORS = "test_errors.py"
POINTS = "test_crash_points.py"

_CHAIN = [
    Bug(
        "link unchecked",
        "format/spec.py",
        "(header.offset, header.seq, header.link) != cursor or end > size",
        "(header.offset, header.seq) != cursor[:2] or end > size",
        ("test_format.py::test_a_stale_chunk_does_not_come_back_after_a_cut_and_a_re_append",),
    ),
    Bug(
        "offset unchecked",
        "format/spec.py",
        "(header.offset, header.seq, header.link) != cursor or end > size",
        "(header.seq, header.link) != cursor[1:] or end > size",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "sequence number unchecked",
        "format/spec.py",
        "(header.offset, header.seq, header.link) != cursor or end > size",
        "(header.offset, header.link) != cursor[::2] or end > size",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "uuid unchecked",
        "format/spec.py",
        "header is None or header.uuid != uuid or header.kind == KIND_HEAD",
        "header is None or header.kind == KIND_HEAD",
        ("test_format.py::test_a_chunk_of_another_archive_is_no_chunk",),
    ),
    Bug(
        "header not packed again",
        "format/spec.py",
        "return header if header is not None and packed == data[: header.nbytes] else None",
        "return header",
        ("test_attacks.py",),
        keyword="header_padding",
    ),
    Bug(
        "header without its crc32",
        "format/spec.py",
        "crc32(packed[: end - 4]))) != header_crc",
        "crc32(packed[: end - 4]))) < 0",
        ("test_format.py::test_every_bit_of_a_header_counts",),
    ),
    Bug(
        "payload beyond the file",
        "format/spec.py",
        "!= cursor or end > size:",
        "!= cursor:",
        ("test_format.py::test_a_walk_finds_the_chunks_and_stops_where_the_next_belongs",),
    ),
    Bug(
        "cursor moves at the index",
        "format/chain.py",
        "            self._index = header\n            return\n",
        "            self._index = header\n            self.cursor = spec.after(header)\n"
        "            return\n",
        (f"{INTERRUPTS}[seal]",),
    ),
    Bug(
        "an entry listed twice",
        "format/chain.py",
        "if listed is not None and (not listed or listed[-1].seq < header.seq):",
        "if listed is not None:",
        (f"{INTERRUPTS}[append]",),
    ),
    Bug(
        "older record wins",
        "format/chunk_tables.py",
        "kept = order[np.append(ordered[1:] != ordered[:-1], True)]",
        "kept = order[np.append(True, ordered[1:] != ordered[:-1])]",
        ("test_contents.py::test_of_two_records_of_one_index_the_later_counts",),
    ),
    Bug(
        "lost entries stay",
        "format/chain.py",
        "self.give_up(seq for part in amendment.lost for seq in part)",
        "self.give_up(())",
        (f"{POINTS}::test_a_chunk_lost_in_a_power_cut_is_missing_and_is_computed_again",),
    ),
    Bug(
        "an amendment without its payload ends all",
        "format/chain.py",
        "or spec.crc32(data) != header.table_crc:\n        return None",
        "or spec.crc32(data) != header.table_crc:\n        pass",
        (f"{POINTS}::test_an_amendment_lost_in_a_power_cut_does_not_end_the_archive",),
    ),
    Bug(
        "losses not looked for",
        "format/chain.py",
        "lost = {header.seq for header in unsynced if not has_sound_payload(pread, header)}",
        "lost = set[int]()",
        (f"{POINTS}::test_a_chunk_lost_in_a_power_cut_is_missing_and_is_computed_again",),
    ),
    Bug(
        "chunks stay without their dictionary",
        "format/chain.py",
        "        if dictionaries:\n            lost |=",
        "        if not dictionaries:\n            lost |=",
        (f"{POINTS}::test_a_dictionary_lost_in_a_power_cut_does_not_end_the_archive",),
    ),
    Bug(
        "extents unchecked",
        "format/chain.py",
        "    if not _within(header, table):",
        "    if False:",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "schema number unchecked",
        "format/chain.py",
        "if room < 0 or records.index is None or int(records.schema.max()) >= len(table.schemas):",
        "if room < 0 or records.index is None:",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "sums of extents may wrap",
        "format/chain.py",
        "    if int(records.offset.max()) > room or int(records.nbytes.max()) > room:",
        "    if False:",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "records may overlap",
        "format/chain.py",
        "    if np.any(records.offset[1:] < ends[:-1]):",
        "    if False:",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "chunk table without its crc32",
        "format/chain.py",
        "    if len(data) != header.table_nbytes or spec.crc32(data) != header.table_crc:\n        raise",
        "    if len(data) != header.table_nbytes:\n        raise",
        (
            "test_contents.py::test_a_damaged_table_names_chunk_and_offset",
            "test_flips.py::test_flips_in_an_unsealed_archive_are_never_read_as_another_value",
        ),
    ),
    Bug(
        "seal's directory unchecked",
        "reader/file_session.py",
        "            self.chain.check_seal(file.pread, self.size, self.seal)\n",
        "",
        ("test_attacks_differential.py::test_a_directory_that_lies_is_refused_before_anything_is_read",),
    ),
    Bug(
        "index not compared with the chain",
        "reader/file_session.py",
        "if self.chunks is not None:\n            self.chain.check_index(",
        "if False:\n            self.chain.check_index(",
        ("test_attacks.py",),
        keyword="chunk_outside or chunk_overlap or no_chunks",
    ),
    Bug(
        "a page may point out of the file",
        "format/index_pages.py",
        "is_outside = bool(offset.min() < 0 or (offset + nbytes).max() > size)",
        "is_outside = False",
        ("test_attacks.py",),
        keyword="offset_outside or end_outside",
    ),
    Bug(
        "differences of offsets count bytes",
        "reader/index.py",
        "unit = has << (_LATTICE_BITS if column == _OFFSET else 0)",
        "unit = has",
        ("test_index.py::test_an_index_says_what_the_arrays_say",),
    ),
    Bug(
        "pages are believed unchecked",
        "reader/index.py",
        "        if self._unchecked or not lines.is_common:",
        "        self._unchecked = 0\n        if not lines.is_common:",
        ("test_index.py::test_a_damaged_page_is_met_only_where_it_lies",),
    ),
    Bug(
        "a part of a merge takes rows that later chunks have too",
        "format/chunk_tables.py",
        'below = int(np.searchsorted(whole.columns["index"], bound))',
        "below = len(whole)",
        ("test_contents.py::test_parts_rise_however_chunks_overlap",),
    ),
    Bug(
        "a merge takes chunks in the order of the chain",
        "format/chunk_tables.py",
        "spans = sorted(self._spans, key=lambda span: span.first)",
        "spans = self._spans",
        ("test_contents.py::test_parts_rise_however_chunks_overlap",),
    ),
    Bug(
        "the rows of every part of an index count from 0",
        "format/index_pages.py",
        "index=np.arange(self.rows, self.rows + len(records.offset))",
        "index=np.arange(len(records.offset))",
        ("test_index.py::test_the_bytes_do_not_depend_on_how_the_records_come",),
    ),
    Bug(
        "a stride may wrap",
        "format/index_pages.py",
        "if reach > _FAR:",
        "if False:",
        ("test_attacks.py",),
        keyword="wrapping_stride",
    ),
    Bug(
        "a difference of offsets may wrap",
        "format/index_pages.py",
        "(_FAR >> _LATTICE_BITS if k == _OFFSET else _FAR)",
        "_FAR",
        ("test_attacks.py",),
        keyword="wrapping_difference",
    ),
    Bug(
        "batches of labels may overlap",
        "format/label_file.py",
        "np.any(starts[1:] < ends[:-1])",
        "False",
        ("test_attacks.py",),
        keyword="batches_overlap",
    ),
    Bug(
        "bounds of labels are believed",
        "format/label_file.py",
        """if _bounds(array) != (part["is_bounded"], part["least"], part["most"]):""",
        "if False:",
        ("test_attacks.py",),
        keyword="bounds_crossed or bounds_elsewhere",
    ),
    Bug(
        "a filter leaves out a batch whose least value is the limit",
        "labels/pruning.py",
        'may = least < value if operation == "<" else least <= value',
        "may = least < value",
        ("test_pruning.py::test_a_filter_by_text_chooses_what_it_chooses_without_bounds",),
    ),
]

_WRITER = [
    Bug(
        "header before payload",
        "writer/log.py",
        "                self._write_parts(header.payload_offset, parts)\n"
        "                self.file.pwrite(header.offset, format.pack_header(header))\n",
        "                self.file.pwrite(header.offset, format.pack_header(header))\n"
        "                self._write_parts(header.payload_offset, parts)\n",
        (f"{POINTS}::test_a_header_is_written_after_its_payload",),
    ),
    Bug(
        "seal's header before its sync",
        "writer/log.py",
        "            self.sync()\n            self.file.pwrite(index.offset",
        "            self.file.pwrite(index.offset",
        (f"{POWER_CUT}[create]",),
    ),
    Bug(
        "seal's first header first",
        "writer/log.py",
        "            self.file.pwrite(labels.payload_end, directory)\n",
        "            self.file.pwrite(index.offset, format.pack_header(index))\n"
        "            self.file.pwrite(labels.payload_end, directory)\n",
        (f"{POWER_CUT}[create]",),
    ),
    Bug(
        "head not synced",
        "writer/appender.py",
        "                    file.sync()\n                    storage.sync_directory",
        "                    storage.sync_directory",
        (f"{POWER_CUT}[create]", f"{POWER_CUT}[sync each chunk]"),
    ),
    Bug(
        "new name not synced",
        "writer/appender.py",
        "                    storage.sync_directory(os.path.dirname(name))\n",
        "",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "dictionary not synced",
        "writer/appender.py",
        "            self._log.sync()\n\n    def dictionaries",
        "\n    def dictionaries",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "a failed sync is forgotten",
        "writer/log.py",
        '            self.failed = "a sync failed, so what was written since the last one is in doubt"\n',
        "",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "unsynced counts as durable",
        "writer/log.py",
        "            next=cursor.offset + total,\n            durable=self.chain.durable,",
        "            next=cursor.offset + total,\n            durable=cursor.offset,",
        (f"{POWER_CUT}[create, unsealed]",),
    ),
    Bug(
        "torn tail stays",
        "writer/log.py",
        "        if self.file.size() > end:\n            self.file.truncate(end)",
        "        if self.file.size() < end:\n            self.file.truncate(end)",
        ("test_flips.py::test_a_writer_makes_an_archive_with_garbage_behind_it_sound_again",),
    ),
    Bug(
        "torn tail cut before losses are written",
        "writer/recovery.py",
        "    if lost:\n        behind",
        "    if lost:\n        log.cut_torn_tail()\n        behind",
        (RECOVERY,),
        seconds=20,
        scale=0.4,
    ),
    Bug(
        "what lies behind left out",
        "writer/recovery.py",
        '        loss = {"lost": lost, "behind": f"{format.link_after(behind):016x}"}\n',
        '        loss = {"lost": lost}\n',
        ("test_writer.py::test_what_followed_a_recovery_that_lost_its_power_does_not_follow_the_next",),
    ),
    Bug(
        "losses not written at once",
        "writer/recovery.py",
        "log.publish_whole(format.KIND_AMENDMENT, text, at_once=True)",
        "log.publish_whole(format.KIND_AMENDMENT, text)",
        (f"{RECOVERY}[create-power cut]",),
    ),
    Bug(
        "no look for losses",
        "writer/recovery.py",
        "    if not is_fresh:\n",
        "    if False:\n",
        (f"{POWER_CUT}[create, unsealed]",),
    ),
    Bug(
        "leaves a seal behind a chain that a power cut broke",
        "writer/recovery.py",
        "        log.cut_torn_tail()\n\n\ndef _refuse_damage(",
        "        pass\n\n\ndef _refuse_damage(",
        (
            "test_damage.py::test_a_seal_that_a_power_cut_left_without_its_chunks_is_cut_and_its_"
            "samples_computed_again",
        ),
    ),
    Bug(
        "appends to a file without a name",
        "writer/log.py",
        "            if not self.file.is_named():",
        "            if False:",
        ("test_compact.py::test_who_had_it_open_never_appends_to_the_file_without_a_name",),
    ),
    Bug(
        "appends without catching up",
        "writer/log.py",
        "            self.catch_up()\n            self.cut_torn_tail()",
        "            self.cut_torn_tail()",
        (f"{KILLED}[two writers]",),
    ),
    Bug(
        "a chunk is published again",
        "writer/appender.py",
        "            if self._log.is_published(chunk):\n                return\n",
        "",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "a forked child appends",
        "writer/store.py",
        "        if self._pid != os.getpid():\n            # A child",
        "        if False:\n            # A child",
        ("test_process.py",),
        keyword="forked_child",
    ),
    Bug(
        "a failed append leaves its bytes",
        "writer/log.py",
        "            with suppress(StorageError):\n                self.file.truncate(end)\n"
        "            raise",
        "            raise",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "label types not joined",
        "writer/store.py",
        "            types = known.joined(types, self.path)\n",
        "            pass\n",
        ("test_process.py::test_labels_that_make_no_column_never_end_an_archive",),
    ),
    Bug(
        "replaces in place",
        "writer/cache.py",
        "work = self._local if self._session is None else self._session.path",
        "work = self._local",
        ("test_writer.py::test_w_shows_the_old_archive_until_the_new_one_is_sealed",),
    ),
    Bug(
        "replaces in place, a kill",
        "writer/cache.py",
        "work = self._local if self._session is None else self._session.path",
        "work = self._local",
        (f"{KILLED}[replace]",),
    ),
    Bug(
        "a leftover is cut, not deleted",
        "writer/temporary.py",
        "                storage.remove_tree(work)\n",
        "                session.truncate(0)\n                return session\n",
        ("test_planted_gaps.py",),
    ),
]

GROWTH = "tests/dataset/test_decorator.py::test_each_growth_is_compared_with_the_one_before"

_GROWTH = [
    Bug(
        "who lengthens an archive does not say what its source is",
        "writer/job.py",
        '**({} if fingerprint is None else {"fingerprint": fingerprint})',
        "**{}",
        (GROWTH,),
    ),
    Bug(
        "on_stale knows nothing of the source that a call made",
        "dataset/decorator.py",
        "self._is_stale(archive, fingerprint, source)",
        "self._is_stale(archive, fingerprint)",
        ("tests/dataset/test_decorator.py::test_what_a_source_says_is_compared_where_a_call_makes_it",),
    ),
    Bug(
        "compaction forgets who lengthened an archive",
        "tools/compact.py",
        "revision, origin=origin, replace=in_place",
        "revision, replace=in_place",
        (GROWTH,),
    ),
    Bug(
        "what a method says of a source that grew is not cut",
        "writer/fingerprint.py",
        "_argument(name, str(key), cut(value))",
        "_argument(name, str(key), value)",
        (GROWTH,),
    ),
]

_SYSTEM = [
    Bug(
        "unlocked once",
        "storage/file.py",
        "        except BaseException:\n            self.unlock(start)\n            raise\n\n    def lock(",
        "        except BaseException:\n            raise\n\n    def lock(",
        (f"{INTERRUPTS}[append]",),
    ),
    Bug(
        "never unlocked",
        "storage/file.py",
        "            finally:\n                self.unlock(start)\n        except",
        "            finally:\n                pass\n        except",
        ("test_durable.py::test_two_opens_in_one_process_exclude_each_other",),
    ),
    Bug(
        "a child keeps its parent's locks",
        "storage/file.py",
        "    os.register_at_fork(after_in_child=_settle_inherited)",
        "    pass",
        ("test_stress.py::test_the_death_of_a_process_frees_its_locks_though_its_children_live",),
    ),
    Bug(
        "a held lock is taken",
        "storage/file.py",
        "            if error.errno in (errno.EAGAIN, errno.EACCES):\n                return False\n",
        "            if error.errno in (errno.EAGAIN, errno.EACCES):\n                return True\n",
        ("test_durable.py",),
        keyword="lock or exclude",
    ),
    Bug(
        "a file cut while it is mapped",
        "storage/file.py",
        "except (OverflowError, MemoryError, ValueError) as error:",
        "except (OverflowError, MemoryError) as error:",
        ("test_durable.py::test_more_than_the_file_has_is_not_mapped",),
    ),
    Bug(
        "a short write is believed",
        "storage/file.py",
        "            while done < len(view):\n",
        "            for _ in range(1):\n",
        ("test_durable.py::test_short_writes_and_reads_are_completed",),
    ),
    Bug(
        "a failed sync is no error",
        "storage/file.py",
        "calls.system.sync)",
        "lambda fd: None)",
        (f"{ERRORS}::test_a_failed_sync_ends_a_writer_and_is_not_tried_again",),
    ),
    Bug(
        "a folder is not synced after a replacement",
        "storage/paths.py",
        "    sync_directory(os.path.dirname(target))\n",
        "",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "every file is of this boot",
        "storage/file.py",
        "return boot_time is not None and file.modified() > boot_time + 1",
        "return boot_time is not None",
        ("test_durable.py::test_a_file_is_of_this_boot_only_if_it_was_written_after_it",),
    ),
]

_READER = [
    Bug(
        "record without its crc32",
        "reader/checks.py",
        "        if crc != expected:",
        "        if False:",
        ("test_blocks.py::test_a_damaged_record_is_named_and_no_other",),
    ),
    Bug(
        "a block without its crc32",
        "reader/checks.py",
        "crcs_offsets[run] + 4 * number)[0]:\n            return False\n",
        "crcs_offsets[run] + 4 * number)[0]:\n            pass\n",
        ("test_blocks.py::test_a_damaged_record_is_named_and_no_other",),
    ),
    Bug(
        "blocks without their crc32",
        "reader/checks.py",
        "        is_sound = np.array(crcs) == np.array(wanted)\n",
        "        is_sound = np.ones(len(blocks), bool)\n",
        ("test_blocks.py::test_a_damaged_record_is_named_and_no_other",),
    ),
    Bug(
        "done before the last block",
        "reader/checks.py",
        "            self.done = not len(self._check(self._unchecked(np.arange(self._count))))",
        "            self.done = True",
        ("test_blocks.py::test_what_is_damaged_is_never_done",),
    ),
    Bug(
        "index without its crc32",
        "reader/extents.py",
        "return data if len(data) == nbytes and format.crc32(data) == crc else None",
        "return data",
        ("test_flips.py::test_a_flipped_bit_is_never_read_as_another_value",),
    ),
    Bug(
        "maps a torn tail",
        "reader/file_session.py",
        "end = self.chain.cursor.offset if self.seal is None else self.size",
        "end = self.size",
        ("test_process.py",),
        keyword="a_torn_tail_that_is_cut",
    ),
    Bug(
        "another archive at the path",
        "reader/file_session.py",
        "                if _is_rewritten(file, self.path, self.head.uuid):",
        "                if True:",
        ("test_compact.py::test_a_reader_that_looks_again_refuses_another_archive",),
    ),
    Bug(
        "missing, but for the last",
        "reader/reader.py",
        "return np.flatnonzero(absent)",
        "return np.flatnonzero(absent[:-1])",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "labels of another row",
        "format/tables.py",
        "    rows[index] = np.arange(len(index))\n",
        "    rows[index] = np.arange(len(index))[::-1]\n",
        (
            "test_lazy.py",
            "test_select.py",
        ),
        keyword="sparse",
    ),
    Bug(
        "a frame's size is believed",
        "codec/compression.py",
        "    if header.content_size != raw_nbytes:",
        "    if False:",
        ("test_codec_compression.py::test_lies_about_the_size",),
    ),
    Bug(
        "a frame's size is allocated",
        "codec/compression.py",
        "    if raw_nbytes > most_content(len(frame)):",
        "    if False:",
        ("test_codec_compression.py::test_a_bomb_is_refused_before_it_allocates",),
    ),
    Bug(
        "indices that no bytes justify",
        "dataset/indexing.py",
        "        self._guard(8)\n        return self._whole_selection().array()",
        "        return self._whole_selection().array()",
        ("test_views.py::test_no_view_allocates_on_the_word_of_a_file",),
    ),
    Bug(
        "unlike samples made one batch",
        "dataset/concatenation.py",
        "        if special is not None or _common(shares, fields) is None:",
        "        if special is not None:",
        ("test_combining.py::test_a_batch_of_unlike_samples_is_what_default_collate_makes_of_them",),
    ),
    Bug(
        "a transform forgotten in a concat",
        "dataset/concatenation.py",
        "    if part._transform is not None:\n        return NotImplemented",
        "    if False:\n        return NotImplemented",
        ("test_combining.py::test_each_part_keeps_its_fields_and_transforms",),
    ),
    Bug(
        "a cut counted in the wrong round",
        "base/selection.py",
        "        first = numbers[0] // size * size",
        "        first = 0",
        ("test_selection.py",),
    ),
    Bug(
        "a random order of even permutations alone",
        "base/permutation.py",
        "        self._low = root + root % 2",
        "        self._low = root",
        ("test_permutation.py::test_an_odd_number_of_swaps_is_as_likely_as_an_even_one",),
    ),
    Bug(
        "shares that are not of the class",
        "dataset/split.py",
        "        hands = dealt_by_class(random, strata, apportioned(counts, weights))",
        "        hands = dealt(random, sizes_of(count, weights))",
        ("test_splits.py::test_each_part_has_of_each_class_its_share_rounded_down_or_up",),
    ),
    Bug(
        "digest not compared",
        "reader/digests.py",
        "    if digest != expected:",
        "    if False:",
        ("test_digest.py::test_the_published_file_opens_and_any_other_does_not",),
    ),
]

_MAINTENANCE = [
    Bug(
        "verify leaves out padding",
        "tools/verify.py",
        "            if any(format.padding_of(self._pread, header)):",
        "            if False:",
        ("test_attacks.py",),
        keyword="amendment_padding or chunk_padding",
    ),
    Bug(
        "verify leaves out what is between records",
        "tools/verify.py",
        "        if len(foreign) and not has_foreign:",
        "        if False:",
        ("test_verify.py::test_a_byte_between_records_is_no_room_for_anything",),
    ),
    Bug(
        "verify leaves out the records",
        "tools/verify.py",
        "np.flatnonzero(crcs != records.crc32)",
        "np.flatnonzero(crcs != crcs)",
        ("test_verify.py::test_a_record_is_named_with_its_place_and_what_helps",),
    ),
    Bug(
        "verify leaves out a payload's crc32",
        "tools/verify.py",
        "        if crc != header.payload_crc:",
        "        if False:",
        ("test_flips.py",),
        keyword="verify_reports",
    ),
    Bug(
        "verify does not compare the index",
        "tools/verify.py",
        "        if not _same_index(sealed, self.contents.index._replace(labels=columns)):",
        "        if False:",
        ("test_attacks.py",),
        keyword="another_schema or schema_number or offset_outside",
    ),
    Bug(
        "compact does not keep others out",
        "tools/compact.py",
        "        with file.locked(format.LOCK_APPEND) if in_place else nullcontext():\n",
        "        if True:\n",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "compact leaves out what came meanwhile",
        "tools/compact.py",
        "    chunks = [header for header in chain.chunks if header.seq >= first]\n",
        "    chunks = []\n",
        ("test_compact.py::test_what_others_append_meanwhile_is_taken_over",),
    ),
    Bug(
        "repair prefers the seal's record",
        "tools/salvage.py",
        "return _joined(before.without(after.index), after, self.path)",
        "return _joined(before, after.without(before.index), self.path)",
        ("test_planted_gaps.py",),
    ),
    Bug(
        "repair copies a damaged record",
        "tools/rewrite.py",
        "np.uint32) == part.crc32\n",
        "np.uint32) >= 0\n",
        ("test_repair.py::test_a_damaged_record_alone_is_lost",),
    ),
    Bug(
        "repair revives what was cut off",
        "tools/entries.py",
        "return run[0].seq >= self.runs[-1][-1].seq + 2",
        "return run[0].seq >= self.runs[-1][-1].seq + 1",
        ("test_repair.py::test_an_entry_of_a_history_that_was_cut_off_does_not_come_back",),
    ),
]

_SAMPLERS = [
    Bug(
        "an epoch is drawn again and again",
        "dataset/epoch.py",
        "self.set_epoch(self.epoch + 1)",
        "self.set_epoch(self.epoch)",
        ("test_samplers.py::test_seed_and_epoch_alone_determine_the_order",),
    ),
    Bug(
        "every iteration begins at a place that was loaded once",
        "dataset/epoch.py",
        "self._taken, self._is_resumed, self._is_set, self._iteration = 0, False, False, object()",
        "self._taken, self._is_set, self._iteration = 0, False, object()",
        ("test_samplers.py::test_an_abandoned_epoch_begins_anew",),
    ),
    Bug(
        "ranks draw the same",
        "dataset/epoch.py",
        "return drawn.cut(range(start + rank, end, ranks))",
        "return drawn.cut(range(start, end, ranks))",
        ("test_samplers.py",),
        "ranks_share_an_epoch",
    ),
    Bug(
        "a step loses its last draw",
        "dataset/epoch.py",
        "self._drawn[start : start + self._length : self._ranks]",
        "self._drawn[start : start + self._length - 1 : self._ranks]",
        ("test_replay.py::test_a_step_of_the_job_has_the_same_samples_on_any_ranks",),
    ),
    Bug(
        "views of one length are taken for each other",
        "dataset/state.py",
        'first = ("order", "archive", "samples", "view")',
        'first = ("order", "archive", "samples")\n    own = own | {"view": state["view"]}',
        ("test_replay.py::test_a_state_of_another_view_of_the_same_length_is_refused",),
    ),
    Bug(
        "a loader waits to be asked for one batch more",
        "dataset/loader.py",
        "is_cut = number == len(starts) and",
        "is_cut = False and",
        ("test_loader.py",),
        "whether_or_not_one_more_is_asked_for",
    ),
    Bug(
        "a rank that has nothing left begins the next epoch",
        "dataset/epoch.py",
        "rank = None if self._is_resumed else self.rank",
        "rank = self.rank",
        ("test_replay.py::test_ranks_that_have_nothing_left_stay_in_the_epoch_of_a_state",),
    ),
    Bug(
        "an iteration counts on behind another epoch",
        "dataset/epoch.py",
        "self._start, self._taken, self._iteration = 0, 0, object()",
        "self._start, self._taken = 0, 0",
        ("test_replay.py::test_an_epoch_that_is_set_amid_draws_is_the_next",),
    ),
    Bug(
        "states of several archives do not name them",
        "dataset/state.py",
        'getattr(ds, "_readers", ())',
        'getattr(ds, "_readers", ())[:1]',
        ("test_replay.py::test_a_state_of_several_archives_names_them",),
    ),
]

RANDOMNESS = "test_randomness.py"

_RANDOMNESS = [
    Bug(
        "every epoch has the same random numbers",
        "base/randomness.py",
        "parts = (_VERSION, seed, turn.epoch, index, turn.place, turn.number)",
        "parts = (_VERSION, seed, 0, index, turn.place, turn.number)",
        (RANDOMNESS,),
        "samplers_tell_the_epoch",
    ),
    Bug(
        "seeded functions share their numbers",
        "base/randomness.py",
        "step, _now.steps = _now.steps, _now.steps + 1",
        "step = _now.steps",
        (RANDOMNESS,),
        "numbers_of_its_own",
    ),
    Bug(
        "a sample that is read by a transform takes over",
        "base/randomness.py",
        "        _now.sample, _now.steps = before, steps",
        "        pass",
        (RANDOMNESS,),
        "same_epoch",
    ),
    Bug(
        "a global generator is not set back",
        "base/randomness.py",
        "        random.setstate(state)\n",
        "",
        (RANDOMNESS,),
        "set_back",
    ),
    Bug(
        "ranks number their draws alike",
        "dataset/epoch.py",
        "_share(sampler, Selection(range(sampler._count)), sampler._start, sampler.rank)",
        "_share(sampler, Selection(range(sampler._count)), sampler._start, 0)",
        (RANDOMNESS,),
        "numbered_apart",
    ),
    Bug(
        "a part of a concat takes the turns of the first samples",
        "dataset/concatenation.py",
        "which = range(len(turns)) if places is None else places.tolist()",
        "which = range(len(own))",
        (RANDOMNESS,),
        "numbered_apart or put_together",
    ),
    Bug(
        "a loader repeats an epoch without a word",
        "dataset/transforms.py",
        "if epoch is None and told is None and (is_loader or get_worker_info() is not None):",
        "if False:",
        (RANDOMNESS,),
        "does_not_know_the_epoch",
    ),
    Bug(
        "a copy keeps an epoch that nobody can set",
        "dataset/indexing.py",
        'if "_epoch" in state and get_spawning_popen() is None:',
        "if False:",
        (RANDOMNESS,),
        "does_not_know_the_epoch",
    ),
    Bug(
        "a concat does not see that a part became seeded",
        "dataset/indexing.py",
        '        Readable._times_set += 1\n        self._added = checked_function("transform", function)',
        '        self._added = checked_function("transform", function)',
        (RANDOMNESS,),
        "set_later",
    ),
]

IMAGES = "test_images.py"

_IMAGES = [
    Bug(
        "simplejpeg has no limit of pixels",
        "codec/images.py",
        "(limit is not None and height * width > limit)",
        "False",
        (f"{IMAGES}::test_a_decompression_bomb_is_refused_within_pillows_limit",),
    ),
    Bug(
        "simplejpeg fills in what is damaged",
        "codec/images.py",
        "library.decode_jpeg(data, target, strict=True)",
        "library.decode_jpeg(data, target, strict=False)",
        (f"{IMAGES}::test_half_a_file_is_refused_in_every_form",),
    ),
    Bug(
        "a batch of images takes any shape that broadcasts",
        "codec/images.py",
        "        if array.shape != rows.shape[1:]:\n            return None\n",
        "",
        (f"{IMAGES}::test_a_grey_picture_is_not_spread_over_the_colours_of_a_batch",),
    ),
    Bug(
        "records with a schema of their own decode as the last reader chose",
        "codec/decoder.py",
        "    key = text, allow_pickle, decoding, as_arrays, classes.changes\n",
        "    key = text, allow_pickle, None, as_arrays, classes.changes\n",
        (f"{IMAGES}::test_the_reader_chooses_over_the_writer_for_every_schema",),
    ),
    Bug(
        "an image folder does not look at times",
        "interop/folders.py",
        "stat.st_size, stat.st_mtime_ns",
        "stat.st_size, 0",
        ("test_folders.py::test_a_tree_that_changed_is_noticed",),
    ),
]

_LABELS = [
    Bug(
        "labels added are not synced",
        "writer/appender.py",
        "                self._log.sync() if seal is None else self._log.seal()\n",
        "                None if seal is None else self._log.seal()\n",
        (f"{CRASHES}::test_labels_are_on_the_disk_once_they_are_added",),
    ),
    Bug(
        "a header behind a seal before its sync",
        "writer/log.py",
        "            # With its header it is a seal, of which readers believe that it is there.\n"
        "            self.sync()\n"
        "            self.file.pwrite(header.offset, format.pack_header(header))\n",
        "            self.file.pwrite(header.offset, format.pack_header(header))\n            self.sync()\n",
        (f"{POWER_CUT}[label behind a seal]",),
    ),
    Bug(
        "a batch that a revision changed is passed over",
        "labels/pruning.py",
        "        return (self._bounds.has_values & np.asarray(may)) | self._bounds.is_revised\n",
        "        return self._bounds.has_values & np.asarray(may)\n",
        ("test_behind_seal.py::test_a_filter_looks_into_batches_whose_bounds_a_revision_left",),
    ),
    Bug(
        "a revision behind a seal keeps another type",
        "format/label_file.py",
        "                if field.type not in (kind, pa.null()):\n",
        "                if False:\n",
        (BEHIND,),
    ),
    Bug(
        "labels that were dropped behind a seal stay",
        "format/label_file.py",
        "                kinds.pop(name, None)\n",
        "",
        (BEHIND,),
    ),
    Bug(
        "revisions go behind a seal without end",
        "writer/appender.py",
        "        is_few = len(seal.revisions) < format.MAX_BEHIND_SEAL\n",
        "        is_few = True\n",
        ("test_behind_seal.py::test_many_are_sealed_in",),
    ),
    Bug(
        "labels that were added outlive a newer sample",
        "format/revisions.py",
        "np.where(written[layer.rows] > layer.seq, pick[layer.rows], own)",
        "own",
        ("test_relabel.py::test_what_is_appended_later_has_none_but_for_the_labels_that_its_writer_fills",),
    ),
    Bug(
        "samples bring a dropped column back",
        "format/revisions.py",
        "            kept = [other for other in kept if other != name]\n",
        "",
        ("test_relabel.py::test_a_dropped_column_is_gone_for_good_and_may_be_added_again",),
    ),
    Bug(
        "types of labels that were added are not looked at",
        "writer/appender.py",
        "            format.check_types(types, self._revised_types(), self.path)\n",
        "",
        ("test_relabel.py::test_samples_that_do_not_fit_what_was_added_are_refused_when_they_are_appended",),
    ),
    Bug(
        "select reads labels that are not the samples'",
        "reader/projection.py",
        "reader.unoriginal_labels.isdisjoint(self.known.values()))",
        "True)",
        ("test_relabel.py::test_selecting_a_field_gives_what_the_samples_hold_whatever_the_labels_say",),
    ),
    Bug(
        "verify does not compare the labels",
        "tools/verify.py",
        "        if not format.same_tables(stored.table, revised.table):",
        "        if False:",
        ("test_attacks.py",),
        keyword="seal_other_values",
    ),
    Bug(
        "compact forgets labels that were added",
        "tools/rewrite.py",
        "        if revision is not None:\n            self.out.revise(revision)\n",
        "",
        ("test_relabel.py::test_compacting_folds_all_revisions_into_one_and_changes_no_label",),
    ),
]

_MEMORY = [
    Bug(
        "a forked child holds nothing",
        "backends/shm/memory.py",
        "            os.dup2(held[0], descriptors[0], inheritable=False)\n",
        "",
        ("test_memory.py::test_a_forked_child_holds_when_its_parent_is_killed",),
    ),
    Bug(
        "a name is taken away from those who have it",
        "backends/shm/memory.py",
        "    if not _is_held(system, fd) and _leads_to(where, fd):\n",
        "    if _leads_to(where, fd):\n",
        ("test_memory.py::test_a_second_process_joins_and_computes_nothing",),
    ),
    Bug(
        "a copy that was begun counts as complete",
        "backends/shm/memory.py",
        "    if file.is_frozen():\n",
        "    if file.size():\n",
        ("test_memory.py::test_who_waits_for_a_copy_makes_it_when_the_copier_is_killed",),
    ),
    Bug(
        "nothing keeps what takes a name in memory",
        "storage/paths.py",
        "        if keeper.path == target:\n            keeper.take()\n",
        "        pass\n",
        ("test_memory.py::test_building_anew_computes_each_sample_once",),
    ),
    Bug(
        "whoever takes a name in memory takes it along",
        "dataset/cached.py",
        "            while keeper.has_lost():\n",
        "            while False:\n",
        ("test_memory.py::test_what_takes_the_name_and_goes_while_a_cache_is_opened_is_not_missed",),
    ),
    Bug(
        "memory is written before it is taken",
        "storage/file.py",
        "                self._call(self._naming.reserve, offset, len(view))\n",
        "                pass\n",
        ("test_memory.py::test_a_fill_ends_before_memory_does",),
    ),
    Bug(
        "any file under the number of a holder is joined",
        "backends/shm/memory.py",
        "                if (there.st_dev, there.st_ino) == (device, inode):\n",
        "                if device and inode:\n",
        ("test_memory.py::test_a_number_that_leads_elsewhere_is_not_joined",),
    ),
]

COPY, THROUGH, STREAMS = "test_copy.py", "tests/test_read_through.py", "test_streams.py"

_LOCAL = [
    Bug(
        "what a killed copy left is believed",
        "backends/mirror/fetch.py",
        "return there == format.pack_header(header) and has_sound_payload(file.pread, header)",
        "return there == format.pack_header(header)",
        (f"{COPY}::test_nothing_of_a_partial_copy_is_believed",),
    ),
    Bug(
        "a copy has its name before it is whole",
        "backends/mirror/copy.py",
        'File.open(self.path + PARTIAL, "a")',
        'File.open(self.path if before is None else self.path + PARTIAL, "a")',
        (f"{COPY}::test_a_copy_that_is_killed_at_any_operation_is_continued",),
    ),
    Bug(
        "a side file is overwritten where it counts",
        "backends/mirror/sidecar.py",
        "0 if first <= second else _SLOT_NBYTES",
        "0",
        (f"{COPY}::test_a_copy_that_replaces_another_is_killed_at_any_operation",),
    ),
    Bug(
        "two processes copy at once",
        "backends/mirror/sidecar.py",
        "                file.lock(LOCK_COPY)\n",
        "                pass\n",
        (f"{COPY}::test_processes_that_ask_for_one_copy_make_one",),
    ),
    Bug(
        "what is open may go",
        "backends/mirror/evict.py",
        "        if not file.try_lock(LOCK_USE):\n            return False\n",
        "",
        (f"{COPY}::test_what_somebody_has_open_never_goes",),
    ),
    Bug(
        "a changed archive is read on",
        "backends/mirror/block_fetcher.py",
        "        data = read_many(origin, extents)\n        self.check_identity(origin)\n",
        "        data = read_many(origin, extents)\n",
        (f"{THROUGH}::test_it_is_read_from_whatever_gives_bytes_at_offsets",),
    ),
    Bug(
        "a block is marked before its bytes are there",
        "backends/mirror/block_fetcher.py",
        "                out.pwrite(low << BLOCK_BITS, data)\n",
        "",
        (f"{THROUGH}::test_a_copy_that_is_full_is_an_ordinary_archive",),
    ),
    Bug(
        "who needs a block that another fetches fetches it too",
        "backends/mirror/room.py",
        "        elif side.try_lock(CLAIMS + low, high - low):\n",
        "        elif True:\n",
        (f"{THROUGH}::test_threads_of_a_process_fetch_a_block_once",),
    ),
    Bug(
        "what went while it was read is data",
        "backends/mirror/read_through.py",
        "if self.blocks.look(blocks.start, blocks.stop) == before:",
        "if True:",
        (f"{STREAMS}::test_a_block_that_goes_between_the_look_and_the_read_is_no_data",),
    ),
    Bug(
        "a block goes before the map says so",
        "backends/mirror/room.py",
        "                side.pwrite(MAP_OFFSET + low, bytes((byte + byte % 2) % 256 for byte in state))\n",
        "",
        (f"{STREAMS}::test_what_the_map_says_is_gone_before_it_goes",),
    ),
    Bug(
        "mapped records are not fetched again",
        "reader/checks.py",
        "and self._mend(*self.index.place(row))",
        "and False",
        (f"{THROUGH}::test_a_damaged_block_is_fetched_again",),
    ),
    Bug(
        "records that are read are not fetched again",
        "reader/file_session.py",
        "if not self.file.mend(*extent):",
        "if True:",
        (f"{THROUGH}::test_a_damaged_block_is_fetched_again",),
    ),
    Bug(
        "a damaged index or dictionary is not fetched again",
        "reader/extents.py",
        "if format.crc32(data) != crc and self.file.mend(offset, nbytes):",
        "if False:",
        (f"{THROUGH}::test_dictionaries_index_and_labels_are_mended_too",),
    ),
]

PICKLES = "test_codec_foreign.py"
IMPORTS = "test_importers.py"
FOREIGN = "test_importers_foreign.py"

_OLD_CACHES = [
    Bug(
        "a foreign pickle's names are looked up",
        "codec/foreign_pickles.py",
        '            raise _Refused(f"{module}.{name}")',
        "            return super().find_class(module, name)",
        (f"{PICKLES}::test_what_is_not_on_the_list_is_refused_by_name_and_not_called",),
    ),
    Bug(
        "a foreign tensor ends where it says",
        "codec/foreign_pickles.py",
        "    if last >= len(data) // itemsize:",
        "    if False:",
        (f"{PICKLES}::test_a_tensor_reaches_no_further_than_its_storage",),
    ),
    Bug(
        "a foreign array of objects",
        "codec/foreign_pickles.py",
        "    if not _TEXT.fullmatch(text):",
        "    if False:",
        (f"{PICKLES}::test_a_dtype_has_a_plain_name",),
    ),
    Bug(
        "checksums of an old zip are not looked at",
        "interop/import_members.py",
        "        if crc != self.crc:\n",
        "        if False:\n",
        (f"{IMPORTS}::test_a_flipped_bit_is_found_by_the_checksum",),
    ),
    Bug(
        "members of an old zip may share bytes",
        "interop/import_members.py",
        "    if total > size:",
        "    if False:",
        (f"{IMPORTS}::test_a_bomb_of_members_that_share_bytes_is_refused",),
    ),
    Bug(
        "of labels twice the first counts",
        "interop/import_edflow.py",
        "read_member(self.path, labels[-1], _MOST_LABELS)",
        "read_member(self.path, labels[0], _MOST_LABELS)",
        (f"{IMPORTS}::test_of_labels_twice_the_last_counts",),
    ),
    Bug(
        "links in an old folder are followed",
        "interop/import_source.py",
        "entry.is_file(follow_symlinks=False))",
        "entry.is_file())",
        (f"{IMPORTS}::test_links_in_a_folder_are_not_followed",),
    ),
    Bug(
        "an old cache is as long as its largest index, whatever that is",
        "interop/import_source.py",
        "        if self._length > _FREE_LENGTH + _LENGTH_A_SAMPLE * len(indices):",
        "        if self._length > 1 << 62:",
        (f"{IMPORTS}::test_an_index_beyond_reason_is_refused",),
    ),
    Bug(
        "the last sample of a cut shard is kept",
        "interop/import_webdataset.py",
        "            if len(self._keys) > begin:\n",
        "            if False:\n",
        (f"{FOREIGN}::test_a_shard_that_was_cut_yields_the_samples_before_the_last",),
    ),
]

_PLACES = [
    Bug(
        "a range of another place is believed",
        "backends/remote/http.py",
        "    if (first, last + 1) != (start, min(end, size)):",
        "    if False:",
        ("test_places_faults.py",),
        keyword="that_stays and another and place",
    ),
    Bug(
        "an answer of another state is believed",
        "backends/remote/http.py",
        "    if now.tag and now.kind == stamp.kind and",
        "    if False and now.tag and now.kind == stamp.kind and",
        ("test_places_faults.py",),
        keyword="that_stays and ETag",
    ),
    Bug(
        "credentials go along with a redirect",
        "backends/remote/http.py",
        "headers if where.origin() == origin else {}",
        "headers",
        ("test_places.py::test_credentials_stay_with_the_server_that_they_are_for",),
    ),
    Bug(
        "every pickle has credentials",
        "backends/credentials.py",
        "self._pickled(get_spawning_popen() is not None)",
        "self._pickled(True)",
        ("test_places.py::test_a_pickle_has_no_credentials_and_the_error_says_so",),
    ),
    Bug(
        "a library's error comes along with its text",
        "backends/remote/requests.py",
        "        return refused(self._described(error))\n\n    def _described",
        "        raise refused(self._described(error))\n\n    def _described",
        ("test_places.py::test_whatever_a_file_system_does_is_one_error",),
    ),
    Bug(
        "blocks that were fetched are not compared",
        "reader/checks.py",
        "elif self._are_sound(part, data, crcs):",
        "else:",
        ("test_places.py::test_a_damaged_block_is_never_read",),
    ),
    Bug(
        "a crc32 that fails does not make the reader look for a change",
        "reader/checks.py",
        "                self._file.check_unchanged()\n",
        "                pass\n",
        ("test_places.py::test_a_crc32_that_fails_makes_the_reader_look_whether_the_object_changed",),
    ),
    Bug(
        "an upload replaces what came meanwhile",
        "backends/objects.py",
        "if not self._replaces and self._store.state() != self._before:",
        "if False:",
        ("test_places_writing.py::test_another_archive_that_came_meanwhile_is_kept",),
    ),
]

_FRAMEWORKS = [
    Bug(
        "a collate function of the user's gets a batch that is not read",
        "reader/batch.py",
        "if collate is default_collate or isinstance(collate, Special):",
        "if collate is not None:",
        ("test_batch.py::test_a_collate_function_of_the_users_gets_a_list",),
    ),
    Bug(
        "an archive is complete without its seal",
        "reader/reader.py",
        "return self.sealed and self.has_all",
        "return self.has_all",
        ("test_partial.py::test_the_warning_says_what_is_there_and_what_to_do",),
    ),
]

BUGS = [
    *(*_CHAIN, *_WRITER, *_GROWTH, *_SYSTEM, *_READER, *_MAINTENANCE),
    *(*_MEMORY, *_SAMPLERS, *_RANDOMNESS, *_IMAGES, *_LABELS, *_LOCAL),
    *(*_OLD_CACHES, *_PLACES, *_FRAMEWORKS),
]
