"""What few need and all may read: whole methods of other papers, registered like all others."""
