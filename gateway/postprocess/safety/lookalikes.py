"""Letters of other scripts that look like Latin ones, as they are after case folding and decomposition.

A small table of the letters that are really used to slip past word lists, not Unicode's whole list of confusables: each
entry also makes honest words of that script alike (`lookalikes = false` in a rule switches the table off).
"""

from __future__ import annotations

_CYRILLIC = ("авегһнікморстухѕјԛԝԁӏь", "aberhhikmopctyxsjqwdlb")
_GREEK = ("αβεηικνορτυχωγ", "abenikvoptuxwy")
_OTHERS = ("ɑɡıօսհոցᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢłđø", "agiouhngabcdefghijklmnoprstuvwyzldo")

LOOKALIKES: dict[str, str] = {
    look: letter for looks, letters in (_CYRILLIC, _GREEK, _OTHERS) for look, letter in zip(looks, letters, strict=True)
}
