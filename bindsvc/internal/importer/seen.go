package importer

import "hash/maphash"

// seen is the set of what a source had before, as 64-bit hashes in open addressing:
// 8 to 21 bytes each, so that two million fit in 32 MiB; a map takes twice as much.
// That two of a million users share a hash has a chance of one in ten million; the
// second would be reported, not misplaced.
type seen struct {
	seed  maphash.Seed
	slots []uint64 // 0 = free
	mask  uint64   // their number, a power of two, less one
	used  int
}

func newSeen() *seen { return &seen{seed: maphash.MakeSeed(), slots: make([]uint64, 1024), mask: 1023} }

// hash is never 0. The same text of another kind has another hash.
func (s *seen) hash(kind byte, text string) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	_ = h.WriteByte(kind)
	_, _ = h.WriteString(text)
	return max(1, h.Sum64())
}

func (s *seen) has(hash uint64) bool { return s.slots[s.slot(hash)] == hash }

func (s *seen) add(hash uint64) {
	at := s.slot(hash)
	if s.slots[at] == hash {
		return
	}
	s.slots[at] = hash
	if s.used++; s.used > len(s.slots)/4*3 {
		s.grow()
	}
}

// slot is where the hash is, or would be.
func (s *seen) slot(hash uint64) uint64 {
	at := hash & s.mask
	for s.slots[at] != 0 && s.slots[at] != hash {
		at = (at + 1) & s.mask
	}
	return at
}

func (s *seen) grow() {
	before := s.slots
	s.slots, s.mask = make([]uint64, 2*len(before)), 2*s.mask+1
	for _, hash := range before {
		if hash != 0 {
			s.slots[s.slot(hash)] = hash
		}
	}
}
