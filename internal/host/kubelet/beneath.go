package kubelet

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// ReadBeneath reads one of kubelet's own files below root: a regular file of at most most bytes that only root can
// write. See OpenBeneath.
func ReadBeneath(root, name string, most int64) ([]byte, error) {
	fd, err := OpenBeneath(root, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), filepath.Join(root, name))
	defer file.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: file.Name(), Err: err}
	}
	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("read %s: not a regular file", file.Name())
	case !owned.UID(stat.Uid) || stat.Mode&0o022 != 0:
		return nil, fmt.Errorf("read %s: %w", file.Name(), owned.ErrOthers)
	}
	data, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("read %s: larger than %d bytes", file.Name(), most)
	}
	return data, err
}
