package checkkit

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
)

// ReadNumber reads a file of sysfs or procfs that holds one decimal number.
func ReadNumber(files host.Files, name string) (int, error) {
	return readInteger(files, name, strconv.Atoi)
}

// WholeNumber formats a count.
func WholeNumber(f float64) string { return fmt.Sprintf("%.0f", f) }

// FieldAfter returns the number of a field "key=number".
func FieldAfter(fields []string, key string) (float64, error) {
	for _, field := range fields {
		if text, ok := strings.CutPrefix(field, key); ok {
			return ParseShare(text)
		}
	}
	return 0, fmt.Errorf("no %s", key)
}

// ParseShare parses a plain decimal fraction: no sign, no infinity, no NaN.
func ParseShare(text string) (float64, error) {
	if text == "" || strings.Trim(text, "0123456789.") != "" {
		return 0, fmt.Errorf("bad number %q", Sanitize(text, 80))
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("bad number %q: out of range", Sanitize(text, 80))
	}
	return value, nil
}

// CountCPUs counts a list such as "0-3,8,10-11".
func CountCPUs(list string) (int, error) {
	const most = 1 << 16
	count := 0
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("processor list %q: %w", list, err)
		}
		to, err := strconv.ParseUint(last, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("processor list %q: %w", list, err)
		}
		if to < from || count+int(to-from) > most {
			return 0, fmt.Errorf("processor list %q: bad range %q", list, part)
		}
		count += int(to-from) + 1
	}
	return count, nil
}

// Parse reads a file and parses its content, as text or bytes. An error of either step names the file.
func Parse[Content string | []byte, T any](files host.Files, name string, parse func(Content) (T, error)) (T, error) {
	data, err := files.Read(name)
	if err != nil {
		var none T
		return none, err
	}
	value, err := parse(Content(data))
	if err != nil {
		return value, fmt.Errorf("read %s: %w", name, err)
	}
	return value, nil
}

// InLine is an error in a line of a file.
func InLine(line string, err error) error {
	return fmt.Errorf("line %q: %w", Sanitize(line, MaxLine), err)
}

// ListSorted returns the sorted names in a directory, and none if it does not exist.
func ListSorted(files host.Files, dir string) ([]string, error) {
	names, err := files.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	slices.Sort(names)
	return names, err
}

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
