/**
 * The jobs of a list, newest first, as pages and changes arrive.
 *
 * A change costs what it touches, not the length of the list: a page that continues the list is appended, and a row
 * that did not change stays the same object, so that it is not drawn again.
 */
export interface ListedJob {
  job_id: string;
  status: string;
  created_at: string;
  completed_at?: string | null;
  version?: number;
}

interface JobChange {
  kind: string;
  id: string | null;
  data: Record<string, unknown>;
}

const MAX_PAGES = 10;

export class JobRows<T extends ListedJob> {
  private all: T[] = [];
  private readonly places = new Map<string, number>();
  private fitting: T[] = [];

  constructor(private readonly states: readonly string[]) {}

  /** The jobs that fit the filter. Another array whenever one of them has changed. */
  get items(): T[] {
    return this.fitting;
  }

  /** Add a page of the server. Returns whether one of its jobs is in the list already. */
  add(page: readonly T[]): boolean {
    const fresh = page.filter((job) => !this.places.has(job.job_id));
    let hasChanged = false;
    for (const job of page) hasChanged = this.renew(job) || hasChanged;
    const last = this.all.at(-1);
    const first = fresh[0];
    if (first) {
      const continues = !last || compare(last, first) < 0;
      const before = this.all.length;
      this.all = [...this.all, ...fresh];
      if (!continues) this.all.sort(compare);
      for (let place = continues ? before : 0; place < this.all.length; place += 1)
        this.places.set(this.all[place]?.job_id ?? "", place);
    }
    if (hasChanged || first) this.select();
    return fresh.length < page.length;
  }

  /**
   * Load the newest jobs, as far as they are new, and at least so many pages. Returns false if too many are new: jobs
   * between them and the list are then missing.
   */
  async catchUp(
    load: (after: string | undefined) => Promise<{ items: readonly T[]; next?: string | null }>,
    pages: number,
  ): Promise<boolean> {
    let after: string | undefined;
    for (let count = 1; count <= MAX_PAGES; count += 1) {
      const page = await load(after);
      const isConnected = this.add(page.items);
      after = page.next ?? undefined;
      if (!after || (isConnected && count >= Math.min(pages, MAX_PAGES))) return true;
    }
    return false;
  }

  /** Apply changes of the stream. Returns whether one is of a job that is not in the list. */
  change(changes: readonly JobChange[]): boolean {
    let hasChanged = false;
    let hasUnknown = false;
    for (const { kind, id, data } of changes) {
      if (kind !== "job") continue;
      const old = id === null ? undefined : this.all[this.places.get(id) ?? -1];
      if (old) hasChanged = this.renew({ ...old, ...(data as Partial<T>) }) || hasChanged;
      else hasUnknown = true;
    }
    if (hasChanged) this.select();
    return hasUnknown;
  }

  private renew(job: T): boolean {
    const place = this.places.get(job.job_id);
    const old = place === undefined ? undefined : this.all[place];
    if (place === undefined || !old || newer(old, job) === old) return false;
    this.all[place] = job;
    return true;
  }

  private select(): void {
    this.fitting =
      this.states.length === 0 ? [...this.all] : this.all.filter((job) => this.states.includes(job.status));
  }
}

function compare(a: ListedJob, b: ListedJob): number {
  if (a.created_at !== b.created_at) return a.created_at < b.created_at ? 1 : -1;
  return a.job_id < b.job_id ? 1 : a.job_id > b.job_id ? -1 : 0;
}

/** The later of two states of a job. One that has ended stays as it is while its version does. */
function newer<T extends ListedJob>(old: T, fresh: T): T {
  const [before, after] = [old.version ?? 0, fresh.version ?? 0];
  if (after < before) return old;
  return after === before && old.completed_at && fresh.completed_at ? old : fresh;
}
