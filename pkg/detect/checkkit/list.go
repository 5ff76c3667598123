package checkkit

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/nodeagent/nodeagent/internal/host"
)

// ListSorted returns the sorted names in a directory, and none if it does not exist.
func ListSorted(files host.Files, dir string) ([]string, error) {
	names, err := files.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	slices.Sort(names)
	return names, err
}
