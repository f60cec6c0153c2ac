/** One important number with its label. */
export function Figure({ label, value }: { label: string; value: string }) {
  return (
    <div class="card figure">
      <span class="muted">{label}</span>
      <strong>{value}</strong>
    </div>
  );
}
