"""The WMTS is read by GDAL's driver, as an independent implementation of the standard."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serving.test_process import server  # noqa: F401 - a fixture

pytestmark = pytest.mark.requirement("C2")


def gdal(*command: str, folder: Path | None = None) -> str:
    environment = {**os.environ, "GDAL_HTTP_TIMEOUT": "20", "GDAL_ENABLE_WMTS_CACHE": "NO", "NO_PROXY": "*"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(
    shutil.which("gdalinfo") is None or "WMTS" not in gdal("gdalinfo", "--formats"), reason="GDAL has no WMTS driver"
)
def test_gdal_reads_the_values_of_the_dataset(server, tmp_path):  # noqa: F811
    url, _ = server
    capabilities = f"WMTS:{url}/tiles/plain/WMTSCapabilities.xml,tilematrixset=WebMercatorQuad"
    described = json.loads(gdal("gdalinfo", "-json", capabilities, folder=tmp_path))
    picture = tmp_path / "plain.tif"
    window = ("-projwin_srs", "EPSG:4326", "-projwin", "10.4", "50.6", "10.6", "50.4", "-outsize", "64", "64")
    gdal("gdal_translate", "-q", *window, capabilities, str(picture), folder=tmp_path)  # GDAL writes its cache there
    values = json.loads(gdal("gdalinfo", "-json", "-stats", str(picture), folder=tmp_path))["bands"]

    assert "3857" in described["coordinateSystem"]["wkt"]
    assert [band["minimum"] for band in values] == [100, 100, 100, 255]
    assert [band["maximum"] for band in values] == [100, 100, 100, 255]
