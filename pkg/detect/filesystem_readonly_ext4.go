package detect

import "sync"

// ext4 stamps errors with the wall clock, so that whether one happened in this boot can only be told by that clock, which
// may have been set by years since. What was told once of a mounted filesystem stays told, and an error that came while the
// agent looked is of this boot whatever the clock says.

// ext4Memory is what was told of the errors of each mounted ext4 filesystem.
type ext4Memory struct {
	mu   sync.Mutex // guards the two below
	seen map[ext4Mount]ext4Errors
	any  bool // filesystem, of whatever type, was seen
}

// forget forgets all, and reports whether any filesystem was ever seen.
func (m *ext4Memory) forget() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = nil
	return m.any
}

// ext4Mount is one mounted filesystem. Both numbers are used again after it was unmounted, but hardly together.
type ext4Mount struct {
	device string
	mount  int
}

// settle gives errors that were seen before the boot that they were told of, and forgets filesystems that are gone.
func (m *ext4Memory) settle(filesystems []filesystem) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.any = m.any || len(filesystems) > 0
	seen := make(map[ext4Mount]ext4Errors)
	for _, f := range filesystems {
		if f.ext4 == nil {
			continue
		}
		key := ext4Mount{f.device, f.principal.ID}
		if old, known := m.seen[key]; known {
			switch {
			case f.ext4.count == old.count && f.ext4.last.Equal(old.last):
				f.ext4.sinceBoot, f.ext4.seenCome = old.sinceBoot, old.seenCome
			case f.ext4.count > old.count:
				f.ext4.sinceBoot, f.ext4.seenCome = true, true
			}
		}
		seen[key] = *f.ext4
	}
	m.seen = seen
}
