package ctrgen

import "strconv"

// AppendLibsvm appends the record as libsvm text: the label, then key:1 of each
// distinct feature.
func (r *Record) AppendLibsvm(b []byte) []byte {
	b = append(b, byte('0'+r.Label))
	for _, id := range r.sorted[:r.distinct] {
		b = append(b, ' ')
		b = strconv.AppendUint(b, uint64(id), 10)
		b = append(b, ':', '1')
	}
	return append(b, '\n')
}

// AppendVW appends the record as text for Vowpal Wabbit, features hashed.
func (r *Record) AppendVW(b []byte) []byte {
	if r.Label == 1 {
		b = append(b, "1 |"...)
	} else {
		b = append(b, "-1 |"...)
	}
	for _, id := range r.sorted[:r.distinct] {
		b = append(b, ' ')
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return append(b, '\n')
}

// AppendVWNamespaces appends the record as a user of Vowpal Wabbit would write it:
// a namespace a field, tokens as they are.
func (r *Record) AppendVWNamespaces(b []byte) []byte {
	const names = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	if r.Label == 1 {
		b = append(b, '1')
	} else {
		b = append(b, "-1"...)
	}
	for f := range Fields {
		b = append(b, ' ', '|', names[f], ' ')
		switch {
		case f >= Counts:
			b = appendHex(b, r.categories[f-Counts])
		case r.counts[f] < 0:
			b = append(b, 'x')
		default:
			b = append(b, 'n')
			b = strconv.AppendUint(b, bucket(r.counts[f]), 10)
		}
	}
	return append(b, '\n')
}

// AppendFFM appends the record as field:feature:value text, fields from 0.
func (r *Record) AppendFFM(b []byte) []byte {
	b = append(b, byte('0'+r.Label))
	for f, id := range r.ids {
		b = append(b, ' ')
		b = strconv.AppendInt(b, int64(f), 10)
		b = append(b, ':')
		b = strconv.AppendUint(b, uint64(id), 10)
		b = append(b, ':', '1')
	}
	return append(b, '\n')
}

// AppendTSV appends the record in the layout of the Criteo set: the label, 13
// counts, 26 words of eight hexadecimal digits, separated by tabs.
func (r *Record) AppendTSV(b []byte) []byte {
	b = append(b, byte('0'+r.Label))
	for _, x := range r.counts {
		b = append(b, '\t')
		if x >= 0 {
			b = strconv.AppendInt(b, x, 10)
		}
	}
	for _, x := range r.categories {
		b = append(b, '\t')
		b = appendHex(b, x)
	}
	return append(b, '\n')
}

func appendHex(b []byte, x uint32) []byte {
	const digits = "0123456789abcdef"
	for s := 28; s >= 0; s -= 4 {
		b = append(b, digits[x>>uint(s)&15])
	}
	return b
}
