package bareloop

import "bytes"

// rowKeys is the number of keys of a row; shorter rows are padded with key 0.
const rowKeys = 39

// rows is a batch of parsed rows.
type rows struct {
	keys   []uint32 // rowKeys a row
	labels []float32
	n      int
}

func newRows(n int) rows {
	return rows{keys: make([]uint32, n*rowKeys), labels: make([]float32, n)}
}

// parse parses up to limit lines of text and returns how much it read. Values are
// taken to be 1.
func (r *rows) parse(text []byte, limit int) int {
	p, n := 0, 0
	for p < len(text) && n < limit {
		end := bytes.IndexByte(text[p:], '\n')
		if end < 0 {
			break
		}
		line := text[p : p+end]
		p += end + 1
		r.labels[n] = 0
		if line[0] == '1' || line[0] == '+' {
			r.labels[n] = 1
		}
		parseKeys(line, r.keys[n*rowKeys:(n+1)*rowKeys])
		n++
	}
	r.n = n
	return p
}

// parseKeys parses the keys of a line, the label being skipped.
func parseKeys(line []byte, keys []uint32) {
	q := 0
	for q < len(line) && line[q] != ' ' {
		q++
	}
	k := 0
	for q < len(line) {
		q++
		var key uint32
		for q < len(line) && line[q] != ':' {
			key = key*10 + uint32(line[q]-'0')
			q++
		}
		for q < len(line) && line[q] != ' ' {
			q++
		}
		if k < len(keys) {
			keys[k] = key
			k++
		}
	}
	clear(keys[k:])
}

// Parse parses text as the workers do, and does nothing with it. It returns the
// number of rows.
func Parse(text []byte, batch int) int {
	r, n := newRows(batch), 0
	for {
		text = text[r.parse(text, batch):]
		if r.n == 0 {
			return n
		}
		n += r.n
	}
}
