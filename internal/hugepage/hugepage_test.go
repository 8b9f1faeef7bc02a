package hugepage

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What the memory holds is not changed, whatever its size and place.
func TestAdvise(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, Size/4 - 1, Size / 4, 3*Size/4 + 5} {
		x := make([]uint32, n+1)
		for i := range x {
			x[i] = uint32(i)
		}
		Advise(x[1:])
		for i, v := range x {
			if v != uint32(i) {
				require.Equal(t, uint32(i), v)
			}
		}
	}
}
