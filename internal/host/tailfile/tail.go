package tailfile

import (
	"fmt"
	"io"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Tail returns the last bytes of a regular file, at most limit, and the file's size: for logs that only grow.
func Tail(f host.Files, name string, limit int64) (data []byte, size int64, err error) {
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
	section := io.NewSectionReader(file, max(size-limit, 0), min(size, limit)) // without data added meanwhile
	if data, err = io.ReadAll(section); err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", name, err)
	}
	return data, size, nil
}

// Head returns the first bytes of a file, at most limit.
func Head(f host.Files, name string, limit int64) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}
