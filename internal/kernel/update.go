package kernel

// Constants of an update. Those that a rule does not have are ignored.
type Constants struct {
	// The gradient of a rule is the sum's element times Scale, within ± Clip, plus
	// L2 times the weight. Low is −Clip.
	Scale, Clip, Low, L2 float32
	Rate, Epsilon        float32
	// Take1 and Take2 are 1 − β of Adam's means, Unbias is 1 / (1 − β2^t).
	Take1, Take2, Unbias float32
}

// lanes is how many weights one step of an update takes.
const lanes = 8

// whole is how many of n weights the vector unit takes: none where there is no
// such unit.
func whole(n int) int {
	if !hasAVX2 {
		return 0
	}
	return n &^ (lanes - 1)
}

// SGD does w ← w − rate · g for the first n weights, and leaves the others, less
// than 8 of them or all, to its twin. It tells whether all of the n are finite.
func SGD(w, grad []float32, c *Constants) (n int, finite bool) {
	if n = whole(len(w)); n == 0 {
		return 0, true
	}
	return n, sgdAVX2(&w[0], &grad[:n][0], n, c) == 0
}

// Adagrad does a ← a + g², w ← w − rate · g / (√a + ε), as SGD does.
func Adagrad(w, a, grad []float32, c *Constants) (n int, finite bool) {
	if n = whole(len(w)); n == 0 {
		return 0, true
	}
	return n, adagradAVX2(&w[0], &a[:n][0], &grad[:n][0], n, c) == 0
}

// Adam does m ← m + (1 − β1) (g − m), v ← v + (1 − β2) (g² − v) and
// w ← w − rate · m / (√(v · unbias) + ε), as SGD does.
func Adam(w, m, v, grad []float32, c *Constants) (n int, finite bool) {
	if n = whole(len(w)); n == 0 {
		return 0, true
	}
	return n, adamAVX2(&w[0], &m[:n][0], &v[:n][0], &grad[:n][0], n, c) == 0
}

// Finite tells whether the first n elements are all finite.
func Finite(x []float32) (n int, finite bool) {
	if n = whole(len(x)); n == 0 {
		return 0, true
	}
	return n, finiteAVX2(&x[0], n) == 0
}
