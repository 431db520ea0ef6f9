"""Arrow tables: the index, the labels, and what one asks of them. The only room that knows pyarrow.

    columns.py   what to keep of each sample, and the columns that it makes
    tables.py    the archive's tables to Arrow IPC bytes and back
    where.py     a where-expression, parsed without eval
    view.py      Labels: a mapping from name to numpy array over a label table
    query.py     which rows fulfil conditions

Imports run upwards in this list only.
"""
