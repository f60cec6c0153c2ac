/** The background of the maps: lines of longitude and latitude, generated without a request to a server. Pure. */

const STEPS = [30, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01];

export function stepOf(zoom: number): number {
  return STEPS[Math.max(0, Math.min(STEPS.length - 1, Math.floor(zoom - 1)))] ?? 0.01;
}

export function graticule(bounds: readonly [number, number, number, number], zoom: number) {
  const step = stepOf(zoom);
  const [west, south, east, north] = bounds;
  const lines: [number, number][][] = [];
  const [bottom, top] = [Math.max(-85, south - step), Math.min(85, north + step)];
  for (let lon = Math.ceil(west / step) * step; lon <= east && lines.length < 200; lon += step)
    lines.push([
      [lon, bottom],
      [lon, top],
    ]);
  for (let lat = Math.ceil(bottom / step) * step; lat <= top && lines.length < 400; lat += step)
    lines.push([
      [west - step, lat],
      [east + step, lat],
    ]);
  return {
    type: "FeatureCollection" as const,
    features: [
      { type: "Feature" as const, properties: {}, geometry: { type: "MultiLineString" as const, coordinates: lines } },
    ],
  };
}
