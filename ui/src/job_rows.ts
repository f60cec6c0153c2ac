/**
 * The jobs of a list, newest first, as pages and changes arrive.
 *
 * Long lists stay fast: a page that continues the list is appended without sorting, and a row that did not change stays
 * the same object, so that it is not drawn again.
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
  private readonly positions = new Map<string, number>();
  private matching: T[] = [];

  constructor(private readonly states: readonly string[]) {}

  /** The jobs that match the filter: a new array whenever one of them has changed. */
  get items(): T[] {
    return this.matching;
  }

  /** Add a page of the server. Returns whether one of its jobs was in the list already. */
  add(page: readonly T[]): boolean {
    const fresh = page.filter((job) => !this.positions.has(job.job_id));
    let hasChanged = false;
    for (const job of page) hasChanged = this.replace(job) || hasChanged;
    const last = this.all.at(-1);
    const first = fresh[0];
    if (first) {
      const continues = !last || compare(last, first) < 0;
      const before = this.all.length;
      this.all = [...this.all, ...fresh];
      if (!continues) this.all.sort(compare);
      for (let place = continues ? before : 0; place < this.all.length; place += 1)
        this.positions.set(this.all[place]?.job_id ?? "", place);
    }
    if (hasChanged || first) this.select();
    return fresh.length < page.length;
  }

  /**
   * Load at least `pages` pages of the newest jobs, and more until one contains a job of the list. Returns false if
   * `MAX_PAGES` contain none: the jobs between them and the list are then missing.
   */
  async catchUp(
    load: (after: string | undefined) => Promise<{ items: readonly T[]; next?: string | null }>,
    pages: number,
  ): Promise<boolean> {
    let after: string | undefined;
    for (let count = 1; count <= MAX_PAGES; count += 1) {
      const page = await load(after);
      const reachesList = this.add(page.items);
      after = page.next ?? undefined;
      if (!after || (reachesList && count >= Math.min(pages, MAX_PAGES))) return true;
    }
    return false;
  }

  /** Apply changes of the stream. Returns whether one is about a job that is not in the list. */
  change(changes: readonly JobChange[]): boolean {
    let hasChanged = false;
    let hasUnknown = false;
    for (const { kind, id, data } of changes) {
      if (kind !== "job") continue;
      const old = id === null ? undefined : this.all[this.positions.get(id) ?? -1];
      if (old) hasChanged = this.replace({ ...old, ...(data as Partial<T>) }) || hasChanged;
      else hasUnknown = true;
    }
    if (hasChanged) this.select();
    return hasUnknown;
  }

  private replace(job: T): boolean {
    const place = this.positions.get(job.job_id);
    const old = place === undefined ? undefined : this.all[place];
    if (place === undefined || !old || newer(old, job) === old) return false;
    this.all[place] = job;
    return true;
  }

  private select(): void {
    this.matching =
      this.states.length === 0 ? [...this.all] : this.all.filter((job) => this.states.includes(job.status));
  }
}

function compare(a: ListedJob, b: ListedJob): number {
  if (a.created_at !== b.created_at) return a.created_at < b.created_at ? 1 : -1;
  return a.job_id < b.job_id ? 1 : a.job_id > b.job_id ? -1 : 0;
}

/** The later of two states of a job. Of two states with the same version after its end, the old one is kept. */
function newer<T extends ListedJob>(old: T, fresh: T): T {
  const [before, after] = [old.version ?? 0, fresh.version ?? 0];
  if (after < before) return old;
  return after === before && old.completed_at && fresh.completed_at ? old : fresh;
}
