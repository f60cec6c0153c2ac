/**
 * When data of the server is loaded again.
 *
 * Changes within a pause cause one load. While a load is under way, the next one waits for its end: if responses take
 * longer than the pause, each load would otherwise be given up for the next one, and none would ever be shown.
 */
export class Refresh {
  private timer: ReturnType<typeof setTimeout> | undefined;
  private controller: AbortController | null = null;
  private isStale = false;
  private startedAt = 0;

  constructor(
    private readonly load: (signal: AbortSignal) => Promise<void>,
    private readonly pauseMs: number,
  ) {}

  /** Load at once, instead of a load that is under way: that one may not have what was just changed. */
  now(): void {
    this.stop();
    const own = new AbortController();
    this.controller = own;
    this.startedAt = Date.now();
    this.load(own.signal).finally(() => {
      if (this.controller !== own) return;
      this.controller = null;
      if (!this.isStale) return;
      this.isStale = false;
      this.soon();
    });
  }

  /** Load when the pause since the last load is over, and that load has ended. */
  soon(): void {
    if (this.controller) {
      this.isStale = true;
      return;
    }
    this.timer ??= setTimeout(() => this.now(), Math.max(0, this.pauseMs - (Date.now() - this.startedAt)));
  }

  /** Give up a load that is under way, and one that would follow. */
  stop(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.isStale = false;
    this.controller?.abort();
    this.controller = null;
  }
}
