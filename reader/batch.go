package reader

// Batch is a number of records in compact form. Reader.Next reuses its memory,
// so what it holds is valid until the next call with the same Batch. Optional
// columns are nil when absent. The zero value is ready for use.
type Batch struct {
	// Offsets: record i has the values [Offsets[i], Offsets[i+1]); their number
	// is that of the records plus one.
	Offsets []int32
	// Keys and Values of all records, one record after the other.
	Keys   []uint64
	Values []float32
	// Labels: LabelWidth of them for each record.
	Labels     []float32
	LabelWidth int
	// Fields: the field of each value, or nil.
	Fields []uint32
	// Weights: one for each record, or nil (all are 1).
	Weights []float32
	// Groups: one for each record (libsvm's qid; 0 without), or nil.
	Groups []uint64
	// Last marks the chunk's last batch.
	Last bool

	groups  []uint64  // the memory of Groups while that is nil
	weights []float32 // that of Weights
}

// Records is the number of records.
func (b *Batch) Records() int { return max(len(b.Offsets)-1, 0) }

// Record is the keys and values of record i.
func (b *Batch) Record(i int) ([]uint64, []float32) {
	from, to := b.Offsets[i], b.Offsets[i+1]
	return b.Keys[from:to], b.Values[from:to]
}

// Weight of record i.
func (b *Batch) Weight(i int) float32 {
	if b.Weights == nil {
		return 1
	}
	return b.Weights[i]
}

// WeightSum is the sum of the weights.
func (b *Batch) WeightSum() float64 {
	if b.Weights == nil {
		return float64(b.Records())
	}
	var sum float64
	for _, w := range b.Weights {
		sum += float64(w)
	}
	return sum
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	if b.Groups != nil {
		b.groups = b.Groups
	}
	if b.Weights != nil {
		b.weights = b.Weights
	}
	b.Offsets = append(b.Offsets[:0], 0)
	b.Keys, b.Values, b.Labels = b.Keys[:0], b.Values[:0], b.Labels[:0]
	b.LabelWidth = 1
	b.Fields, b.Weights, b.Groups = nil, nil, nil
	b.Last = false
}

// appendFrom copies record i of src to the end of b.
func (b *Batch) appendFrom(src *Batch, i int) {
	from, to := src.Offsets[i], src.Offsets[i+1]
	b.Keys = append(b.Keys, src.Keys[from:to]...)
	b.Values = append(b.Values, src.Values[from:to]...)
	b.Labels = append(b.Labels, src.Labels[i])
	if src.Weights != nil {
		b.addWeight(src.Weights[i])
	}
	if src.Groups != nil {
		b.setGroup(src.Groups[i])
	} else if b.Groups != nil {
		b.Groups = append(b.Groups, 0)
	}
	b.Offsets = append(b.Offsets, int32(len(b.Keys)))
}

// accept adds the record that was parsed behind the last one; values is where
// its values end.
func (b *Batch) accept(p *parser, values int) {
	if p.hasWeight {
		b.addWeight(p.weight)
	}
	if p.hasGroup {
		b.setGroup(p.group)
	} else if b.Groups != nil {
		b.Groups = append(b.Groups, 0)
	}
	b.Keys, b.Values = b.Keys[:values], b.Values[:values]
	b.Labels = append(b.Labels, p.label)
	b.Offsets = append(b.Offsets, int32(values))
}

// addWeight gives a record a weight; either all records have one or none.
func (b *Batch) addWeight(w float32) {
	if b.Weights == nil {
		b.Weights = b.weights[:0]
	}
	b.Weights = append(b.Weights, w)
}

// setGroup gives the record whose offset comes next a group; records before it
// that have none get 0.
func (b *Batch) setGroup(g uint64) {
	if b.Groups == nil {
		b.Groups = b.groups[:0]
	}
	for len(b.Groups) < b.Records() {
		b.Groups = append(b.Groups, 0)
	}
	b.Groups = append(b.Groups, g)
}

// grow makes room for more values.
func (b *Batch) grow() {
	n := max(2*min(cap(b.Keys), cap(b.Values)), 1024)
	b.Keys = append(make([]uint64, 0, n), b.Keys...)
	b.Values = append(make([]float32, 0, n), b.Values...)
}
