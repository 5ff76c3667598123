package checkkit

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/nodeagent/nodeagent/internal/host"
)

const MaxDisks = 4096 // if there are more, single devices are not reported

// BlockNames lists the whole disks, and the devices stacked on disks, in order. It is empty without block devices.
func BlockNames(files host.Files) ([]string, error) {
	names, err := ListSorted(files, "/sys/block")
	if err != nil {
		return nil, fmt.Errorf("list /sys/block: %w", err)
	}
	if len(names) > MaxDisks {
		return nil, fmt.Errorf("list /sys/block: %d devices", len(names))
	}
	return names, nil
}

// OptionalDeviceText reads a file that some kernels or devices do not have; "" if it is absent.
func OptionalDeviceText(files host.Files, name string) (string, error) {
	text, err := files.Text(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return Sanitize(text, 256), err
}
