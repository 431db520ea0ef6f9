"""Arrow tables: the index, the labels, and what one asks of them. The only room that knows pyarrow.

    arrow.py     pyarrow, loaded by the first call that needs it
    arrays.py    Arrow arrays from and to numpy
    types.py     the types of columns, and the one type that holds the values of several
    framing.py   the frame of Arrow IPC bytes, looked at before Arrow reads them
    tables.py    the archive's tables to Arrow IPC bytes and back
    unify.py     the label tables of several chunks, or of several datasets, as one
    revisions.py the label table that chunks and revisions make together
    wording.py   values and missing columns, as messages put them
    spec.py      LabelSpec: which fields of a sample are labels
    values.py    one label value, as its column keeps it
    columns.py   LabelCollector: samples -> the label columns of a chunk
    comparable.py  a column in which equal values have equal bits
    given.py     a user's arrays, Series, tables and files as label columns
    compare.py   a column compared with plain values and with another column
    where.py     a where-string, parsed without eval
    summary.py   what a label table holds, column by column
    view.py      Labels: a mapping from name to numpy array over a label table
    classes.py   which rows have equal values, and their order
    query.py     which rows fulfil conditions

Imports run upwards in this list only. Those down to revisions.py stand on nothing but errors and bounded.
"""
