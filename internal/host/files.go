package host

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Files reads /proc, /sys, /etc and the like. Only files that answer at once belong here; what lies on a foreign mount
// is for the Prober. The zero value reads the host; Root puts a fixture tree in its place.
type Files struct{ Root string }

// maxFile bounds a single read. The mount table of a node with 20,000 mounts is about 5 MB.
const maxFile = 16 << 20

// maxEntries bounds a directory listing.
const maxEntries = 1 << 18

// Path returns where name really is.
func (f Files) Path(name string) string { return filepath.Join("/", f.Root, name) }

// Read returns the content of a file. A file above 16 MiB is an error, never a truncated answer.
func (f Files) Read(name string) ([]byte, error) {
	file, err := os.Open(f.Path(name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read %s: larger than %d bytes", name, maxFile)
	}
	return data, nil
}

// Text returns the content of a one-line file without white space around it, as most files in /sys are.
func (f Files) Text(name string) (string, error) {
	data, err := f.Read(name)
	return strings.TrimSpace(string(data)), err
}

// List returns the names in a directory without a stat of any entry, so that it cannot hang on a mount below it.
func (f Files) List(dir string) ([]string, error) {
	file, err := os.Open(f.Path(dir))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	names, err := file.Readdirnames(maxEntries)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	if len(names) == maxEntries {
		return nil, fmt.Errorf("list %s: %d entries or more", dir, maxEntries)
	}
	return names, nil
}

// Link returns the target of a symbolic link.
func (f Files) Link(name string) (string, error) { return os.Readlink(f.Path(name)) }
