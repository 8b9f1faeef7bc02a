package reader

// Batch is a number of consecutive records in compact form. Its memory is
// reused by the next call of Reader.Next; optional columns are nil when absent.
type Batch struct {
	// Offsets: record i has the values [Offsets[i], Offsets[i+1]); len = records+1.
	Offsets []int32
	// Keys and Values of all records, one after the other.
	Keys   []uint64
	Values []float32
	// Labels: LabelWidth of them for each record.
	Labels     []float32
	LabelWidth int
	// Fields: the field of each value, or nil.
	Fields []uint32
	// Weights: one for each record, or nil (all 1).
	Weights []float32
	// Groups: one for each record, or nil.
	Groups []uint64
	// Last marks the chunk's last batch.
	Last bool
}

// Records is the number of records.
func (b *Batch) Records() int { return max(len(b.Offsets)-1, 0) }

// Record is the keys and values of record i.
func (b *Batch) Record(i int) ([]uint64, []float32) {
	from, to := b.Offsets[i], b.Offsets[i+1]
	return b.Keys[from:to], b.Values[from:to]
}
