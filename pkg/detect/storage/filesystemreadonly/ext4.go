package filesystemreadonly

// ext4 stamps errors with the wall clock, so that whether one happened in this boot can only be told by that clock,
// which may have been set by years since. What was told once of a mounted filesystem stays told, and an error that
// came while the agent looked is of this boot whatever the clock says.

// ext4State is what was told of the errors of each mounted ext4 filesystem.
type ext4State struct {
	seen map[ext4Mount]ext4Errors
}

// ext4Mount is one mounted filesystem. Both numbers are used again after it was unmounted, but hardly together.
type ext4Mount struct {
	device string
	mount  int
}

// settle gives errors that were seen before the boot that they were told of, and forgets filesystems that are gone.
func (m *ext4State) settle(filesystems []examined) {
	seen := make(map[ext4Mount]ext4Errors)
	for _, f := range filesystems {
		if f.ext4 == nil {
			continue
		}
		key := ext4Mount{f.Device, f.Principal.ID}
		if old, known := m.seen[key]; known {
			switch {
			case f.ext4.count == old.count && f.ext4.last.Equal(old.last):
				f.ext4.sinceBoot, f.ext4.seenCome, f.ext4.shown = old.sinceBoot, old.seenCome, old.shown
			case f.ext4.count > old.count:
				f.ext4.sinceBoot, f.ext4.seenCome, f.ext4.shown = true, true, old.shown
			}
			f.ext4.shown = f.ext4.shown || f.ext4.seenCome && (f.Option("ro") || f.Option("emergency_ro"))
		}
		seen[key] = *f.ext4
	}
	m.seen = seen
}
