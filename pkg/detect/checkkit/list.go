package checkkit

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/nodeagent/nodeagent/internal/host"
)

// ListSorted returns the names in a directory in order, and none of one that does not exist.
func ListSorted(files host.Files, dir string) ([]string, error) {
	names, err := files.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	slices.Sort(names)
	return names, err
}
