package filesystemreadonly

// ext4 records errors with the time of the wall clock, so only that clock shows whether one happened in this boot, and
// it may have been set by years since. The decision about a mounted filesystem is kept, and an error recorded while
// the agent was running is of this boot whatever the clock shows.

// ext4State has the decisions about the errors of each mounted ext4 filesystem.
type ext4State struct {
	known map[mountKey]ext4Errors
}

// mountKey is one mounted filesystem. Both numbers are reused after an unmount, but rarely together.
type mountKey struct {
	device string
	mount  int
}

// settle keeps earlier decisions about errors, and drops filesystems that are gone.
func (m *ext4State) settle(filesystems []examined) {
	known := make(map[mountKey]ext4Errors)
	for _, f := range filesystems {
		if f.ext4 == nil {
			continue
		}
		key := mountKey{f.Device, f.Principal.ID}
		if old, ok := m.known[key]; ok {
			switch {
			case f.ext4.count == old.count && f.ext4.last.Equal(old.last):
				f.ext4.sinceBoot, f.ext4.observed, f.ext4.shown = old.sinceBoot, old.observed, old.shown
			case f.ext4.count > old.count:
				f.ext4.sinceBoot, f.ext4.observed, f.ext4.shown = true, true, old.shown
			}
			f.ext4.shown = f.ext4.shown || f.ext4.observed && (f.Option("ro") || f.Option("emergency_ro"))
		}
		known[key] = *f.ext4
	}
	m.known = known
}
