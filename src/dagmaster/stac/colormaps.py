"""The names of the colour maps that the map server knows. Most of them exist in reverse too, with `_r`.

The orchestrators check names without the libraries of the map server; a test compares the lists.
"""

_REVERSIBLE = """
accent afmhot algae amp autumn balance binary blues bone brbg brg bugn bupu bwr cividis cmrmap cool coolwarm
copper cubehelix curl dark2 deep delta dense diff flag gist_earth gist_gray gist_heat gist_ncar gist_rainbow
gist_stern gist_yarg gnbu gnuplot gnuplot2 gray greens greys haline hot hsv ice inferno jet magma matter
nipy_spectral ocean oranges orrd oxy paired pastel1 pastel2 phase pink piyg plasma prgn prism pubu pubugn puor
purd purples rain rainbow rdbu rdgy rdpu rdylbu rdylgn reds seismic set1 set2 set3 solar spectral speed spring
summer tab10 tab20 tab20b tab20c tarn tempo terrain thermal topo turbid turbo twilight twilight_shifted viridis
winter wistia ylgn ylgnbu ylorbr ylorrd
"""
_NOT_REVERSIBLE = """
cfastie rplumbo schwarzwald
"""
COLORMAPS = frozenset([*_REVERSIBLE.split(), *(f"{name}_r" for name in _REVERSIBLE.split()), *_NOT_REVERSIBLE.split()])
