"""Values as text for a person, a spreadsheet or a program; pure functions, nothing is printed here.

    reports   what each command says
    samples   one sample's tree, and what a schema promises of it
    text      one line, a table, CSV, JSON lines

Each imports only those below it. What comes out of an archive may be anybody's: text meant for a terminal
goes through `printable`.
"""
