package tailfile

import (
	"fmt"
	"io"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Tail returns the last bytes of a regular file, at most so many, and how large the whole is: for logs that only grow.
func Tail(f host.Files, name string, most int64) (data []byte, size int64, err error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, 0, err
	}
	size = info.Size()
	section := io.NewSectionReader(file, max(size-most, 0), min(size, most)) // what is added meanwhile is left out
	if data, err = io.ReadAll(section); err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", name, err)
	}
	return data, size, nil
}

// Head returns the first bytes of a file, at most so many.
func Head(f host.Files, name string, most int64) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}
