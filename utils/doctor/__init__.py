"""The attention doctor: names the bug in anyone's attention code.

    from utils.doctor import diagnose
    diagnose(my_attention)

or, in a terminal,  python -m utils.doctor path/to/file.py:name
"""
