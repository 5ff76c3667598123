package mountinfo

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// listmount(2) and statmount(2) exist since Linux 6.8; x/sys/unix has only their numbers.

// wholeTree asks listmount for the mounts below the root of this process.
const wholeTree = ^uint64(0)

// mountRequest is struct mnt_id_req.
type mountRequest struct {
	size, _   uint32
	id        uint64 // unique since boot, unlike Mount.ID
	parameter uint64 // of listmount: the last known ID; of statmount: the wanted fields
	_         uint64
}

// listMounts puts the IDs of mounts below a mount into ids, in their order, beginning behind an ID. It returns how many
// these are.
func listMounts(below, behind uint64, ids []uint64) (int, error) {
	r := mountRequest{size: uint32(unsafe.Sizeof(mountRequest{})), id: below, parameter: behind}
	n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&r)), uintptr(unsafe.Pointer(&ids[0])), //nolint:gosec // x/sys has no such call
		uintptr(len(ids)), 0, 0, 0)
	runtime.KeepAlive(ids)
	if errno != 0 {
		return 0, fmt.Errorf("listmount: %w", errno)
	}
	return int(n), nil
}

// Fields of statmount: STATMOUNT_SB_BASIC and the like. The source is there since Linux 6.13.
const (
	basicField  = 0x2
	everyField  = 0x1 | basicField | 0x4 | 0x8 | 0x10 | 0x20 | 0x80 | 0x200
	subtype     = 0x100
	textsBegin  = 512
	maxMountLen = 64 << 10
)

// statMount fills buffer with struct statmount of a mount. A mount that does not exist is an ENOENT.
func statMount(id, fields uint64, buffer []byte) error {
	r := mountRequest{size: uint32(unsafe.Sizeof(mountRequest{})), id: id, parameter: fields}
	_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&r)), uintptr(unsafe.Pointer(&buffer[0])), //nolint:gosec // x/sys has no such call
		uintptr(len(buffer)), 0, 0, 0)
	runtime.KeepAlive(buffer)
	if errno != 0 {
		return fmt.Errorf("statmount: %w", errno)
	}
	return nil
}

// readMount returns a mount as its line in the mount table has it.
func readMount(id uint64, buffer []byte) (Mount, error) {
	if err := statMount(id, everyField|subtype, buffer); err != nil {
		return Mount{}, err
	}
	number := func(at int) int { return int(binary.NativeEndian.Uint32(buffer[at:])) }
	large := func(at int) uint64 { return binary.NativeEndian.Uint64(buffer[at:]) }
	text := func(at int) string {
		from := buffer[min(textsBegin+number(at), len(buffer)):]
		return string(from[:max(0, bytes.IndexByte(from, 0))])
	}
	// The options of a filesystem without any are not among the fields.
	if have := large(8); have&(everyField&^0x84) != everyField&^0x84 {
		return Mount{}, fmt.Errorf("statmount: the kernel knows %#x of the fields %#x", have, everyField)
	}
	m := Mount{ID: number(56), Parent: number(60), Major: number(16), Minor: number(20), Root: text(104), Point: text(108),
		FSType: text(36), Source: text(124), Options: mountOptions(large(64)), SuperOptions: superOptions(number(32))}
	if large(8)&subtype != 0 && text(120) != "" {
		m.FSType += "." + text(120)
	}
	if large(8)&0x80 != 0 && text(4) != "" {
		m.SuperOptions = append(m.SuperOptions, splitOptions(text(4))...)
	}
	var tags []string
	if group := large(80); large(72)&unix.MS_SHARED != 0 {
		tags = append(tags, fmt.Sprintf("shared:%d", group))
	}
	if large(72)&unix.MS_SLAVE != 0 {
		tags = append(tags, fmt.Sprintf("master:%d", large(88)))
		if from := large(96); from != 0 && from != large(88) {
			tags = append(tags, fmt.Sprintf("propagate_from:%d", from))
		}
	}
	if large(72)&unix.MS_UNBINDABLE != 0 {
		tags = append(tags, "unbindable")
	}
	m.Optional = strings.Join(tags, " ")
	return m, m.setPropagation(tags)
}

// named is an option and its bit.
type named struct {
	bit  uint64
	name string
}

// mountOptions are the options of a mount with these attributes, in the order of the mount table.
func mountOptions(attributes uint64) []string {
	options := []string{"rw"}
	if attributes&unix.MOUNT_ATTR_RDONLY != 0 {
		options[0] = "ro"
	}
	options = chosen(options, attributes, []named{{unix.MOUNT_ATTR_NOSUID, "nosuid"}, {unix.MOUNT_ATTR_NODEV, "nodev"}, {unix.MOUNT_ATTR_NOEXEC, "noexec"},
		{unix.MOUNT_ATTR_NOATIME, "noatime"}, {unix.MOUNT_ATTR_NODIRATIME, "nodiratime"}})
	if attributes&unix.MOUNT_ATTR__ATIME == unix.MOUNT_ATTR_RELATIME {
		options = append(options, "relatime")
	}
	return chosen(options, attributes, []named{{unix.MOUNT_ATTR_NOSYMFOLLOW, "nosymfollow"}, {unix.MOUNT_ATTR_IDMAP, "idmapped"}})
}

// superOptions are the options that every filesystem may have.
func superOptions(flags int) []string {
	options := []string{"rw"}
	if flags&unix.MS_RDONLY != 0 {
		options[0] = "ro"
	}
	return chosen(options, uint64(flags), []named{{unix.MS_SYNCHRONOUS, "sync"}, {unix.MS_DIRSYNC, "dirsync"}, {unix.MS_LAZYTIME, "lazytime"}}) //nolint:gosec // bits
}

func chosen(options []string, bits uint64, of []named) []string {
	for _, o := range of {
		if bits&o.bit != 0 {
			options = append(options, o.name)
		}
	}
	return options
}
