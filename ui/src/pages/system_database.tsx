/** The health of the database: size, connections, the oldest transaction, dead rows. */
import { api } from "../api/client";
import { Banner, Card, Loaded, Time } from "../components/basics";
import { Figure } from "../components/figure";
import { Table } from "../components/table";
import { useResource } from "../data";
import { bytes, duration, number } from "../format";

export function Database() {
  const facts = useResource("database", (signal) => api.get("/api/v1/database", { signal }), { everyMs: 15_000 });
  return (
    <Loaded resource={facts}>
      {(data) => (
        <div class="stack">
          <div class="figures">
            <Figure label="PostgreSQL" value={data.version.split(" ")[0] ?? data.version} />
            <Figure label="Size" value={bytes(data.database_bytes)} />
            <Figure label="Connections" value={`${number(data.connections)} of ${number(data.max_connections)}`} />
            <Figure
              label="Oldest transaction"
              value={data.oldest_transaction ? duration(data.oldest_transaction.seconds) : "none"}
            />
          </div>
          {data.oldest_transaction && data.oldest_transaction.seconds > 600 && (
            <Banner tone="amber" title={`A transaction has been open for ${duration(data.oldest_transaction.seconds)}`}>
              <p>It prevents VACUUM from removing dead rows. Opened by: {String(data.oldest_transaction.who)}</p>
            </Banner>
          )}
          <Card title="Tables" flush>
            <Table
              keyOf={(table) => table.table}
              items={data.tables}
              columns={[
                { name: "Table", cell: (table) => <code>{table.table}</code> },
                { name: "Size", numeric: true, cell: (table) => bytes(table.bytes) },
                { name: "Rows", numeric: true, cell: (table) => number(table.live_rows) },
                { name: "Dead rows", numeric: true, cell: (table) => number(table.dead_rows) },
                {
                  name: "Partitions",
                  numeric: true,
                  cell: (table) => (table.partitions ? number(table.partitions) : "–"),
                },
                { name: "Vacuumed", cell: (table) => <Time at={table.vacuumed_at} empty="never" /> },
              ]}
            />
          </Card>
        </div>
      )}
    </Loaded>
  );
}
