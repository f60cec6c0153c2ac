"""The names of data types of pixels in STAC and MosaicJSON: those of rasterio, except for complex numbers."""

_COMPLEX = {"complex_int16": "cint16", "complex64": "cfloat32", "complex128": "cfloat64"}
DATA_TYPE_NAMES = frozenset(
    [
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"),
        *_COMPLEX.values(),
    ]
)


def data_type_name(dtype: str) -> str:
    """The name of one of rasterio's data types; `other` if STAC has none for it.

    >>> data_type_name("complex64")
    'cfloat32'
    """
    name = _COMPLEX.get(dtype, dtype)
    return name if name in DATA_TYPE_NAMES else "other"
