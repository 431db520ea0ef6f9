"""Arrow tables: the index, the labels, and what one asks of them. The only room that knows pyarrow.

    wording.py   values and missing columns, as messages put them
    spec.py      LabelSpec: which fields of a sample are labels
    arrays.py    Arrow arrays from and to numpy
    values.py    one label value and its type; the one type of a column
    comparable.py  a column in which equal values have equal bits
    columns.py   LabelCollector: samples -> the label columns of a chunk; those of many chunks as one
    given.py     a user's arrays, Series, tables and files as label columns
    framing.py   the frame of Arrow IPC bytes, looked at before Arrow reads them
    tables.py    the archive's tables to Arrow IPC bytes and back
    revisions.py the label table that chunks and revisions make together
    compare.py   a column compared with plain values and with another column
    where.py     a where-string, parsed without eval
    summary.py   what a label table holds, column by column
    view.py      Labels: a mapping from name to numpy array over a label table
    classes.py   which rows have equal values, and their order
    joining.py   the tables of several datasets as one
    query.py     which rows fulfil conditions

Imports run upwards in this list only.
"""
