// Package spell guesses what a misspelt word was meant to be. It is pure.
package spell

// Nearest is the candidate that word is most likely meant to be, or "": the one
// with the fewest insertions, deletions, replacements and swaps of neighbours,
// if these are no more than one for every three letters (one at least), and
// leave a letter.
func Nearest(word string, candidates []string) string {
	best, bestDistance := "", min(max(1, len(word)/3)+1, len(word))
	for _, c := range candidates {
		if d := distance(word, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// longest bounds the work for a word; longer ones resemble nothing.
const longest = 40

func distance(a, b string) int {
	if len(a) > longest || len(b) > longest {
		return max(len(a), len(b))
	}
	var d [longest + 1][longest + 1]int
	for i := range len(a) + 1 {
		for j := range len(b) + 1 {
			switch {
			case i == 0 || j == 0:
				d[i][j] = i + j
			default:
				cost := 1
				if a[i-1] == b[j-1] {
					cost = 0
				}
				d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+cost)
				if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
					d[i][j] = min(d[i][j], d[i-2][j-2]+1)
				}
			}
		}
	}
	return d[len(a)][len(b)]
}
