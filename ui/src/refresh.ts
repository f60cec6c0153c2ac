/**
 * Decides when data of the server is loaded again.
 *
 * Between two loads that changes cause there is a pause; all changes during it cause one load. A load waits until the
 * previous one has ended: if responses take longer than the pause, each load would otherwise be aborted by the next
 * one, and no data would ever be shown.
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

  /** Load at once. A running load is aborted: its response may not contain what was just changed. */
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

  /** Abort a running load, and cancel the next one. */
  stop(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.isStale = false;
    this.controller?.abort();
    this.controller = null;
  }
}
