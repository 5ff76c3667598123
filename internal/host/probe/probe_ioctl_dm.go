package probe

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dmBuffer is enough for an answer of the device mapper: some 10,000 devices, or the status of a table with as many
// targets.
const dmBuffer = 1 << 20

// dmHeader is the length of struct dm_ioctl of <linux/dm-ioctl.h>.
const dmHeader = int(unsafe.Sizeof(unix.DmIoctl{}))

// deviceMapper makes one ioctl of the device mapper and returns the data after the header.
func deviceMapper(fd int, request uintptr, device uint64, flags uint32) ([]byte, error) {
	buffer := make([]byte, dmBuffer)
	header := (*unix.DmIoctl)(unsafe.Pointer(&buffer[0]))
	header.Version = [3]uint32{4, 0, 0}
	header.Data_size, header.Data_start = dmBuffer, uint32(dmHeader)
	header.Dev, header.Flags = device, flags
	if err := ioctl(fd, request, unsafe.Pointer(&buffer[0])); err != nil {
		return nil, err
	}
	if header.Flags&unix.DM_BUFFER_FULL_FLAG != 0 {
		return nil, unix.ENOBUFS
	}
	start, end := int(header.Data_start), int(header.Data_size)
	if start < dmHeader || end < start || end > len(buffer) {
		return nil, unix.EBADMSG
	}
	return buffer[start:end], nil
}

// mappedDevices parses a chain of struct dm_name_list: the device number, the distance to the next one (0: the last),
// and a name.
func mappedDevices(list []byte) []uint64 {
	var devices []uint64
	for len(list) >= 12 {
		if device := binary.NativeEndian.Uint64(list); device != 0 {
			devices = append(devices, device)
		}
		next := binary.NativeEndian.Uint32(list[8:])
		if next < 12 || uint64(next) > uint64(len(list)) {
			break
		}
		list = list[next:]
	}
	return devices
}

// mappedText returns the text of a device's only target if that is of kind want, else "". DM_NOFLUSH_FLAG keeps a pool
// from committing its metadata for that.
func mappedText(fd int, device uint64, want string, flags uint32) (string, error) {
	data, err := deviceMapper(fd, unix.DM_TABLE_STATUS, device, flags|unix.DM_NOFLUSH_FLAG)
	if err != nil {
		return "", err
	}
	kind, text := firstTarget(data)
	if kind != want {
		return "", nil
	}
	return text, nil
}

// firstTarget parses the first struct dm_target_spec and the text behind it: start, length, status, next, and the
// type in 16 bytes.
func firstTarget(data []byte) (kind, text string) {
	const spec = int(unsafe.Sizeof(unix.DmTargetSpec{}))
	if len(data) < spec {
		return "", "" // a device without a table
	}
	name, _, _ := bytes.Cut(data[spec-16:spec], []byte{0})
	params, _, _ := bytes.Cut(data[spec:], []byte{0})
	const most = 1 << 14 // a pool's line is shorter than 200 bytes; multipath has 30 for each path
	line := strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(params[:min(len(params), most)]), "?"))
	return string(name), strings.TrimSpace(line)
}
