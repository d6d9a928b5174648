package importer

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSeen(t *testing.T) {
	s := newSeen()
	for i := range 10_000 {
		hash := s.hash('i', strconv.Itoa(i))
		require.False(t, s.has(hash), i)
		s.add(hash)
		s.add(hash)
	}
	require.Equal(t, 10_000, s.used)
	for i := range 10_000 {
		require.True(t, s.has(s.hash('i', strconv.Itoa(i))), i)
		require.False(t, s.has(s.hash('n', strconv.Itoa(i))), "of another kind: %d", i)
	}
}
