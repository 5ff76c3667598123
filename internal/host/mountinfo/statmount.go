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

// Fields of statmount. The source is there since Linux 6.13.
const (
	superBasic = 1 << iota // STATMOUNT_SB_BASIC
	mountBasic
	propagateFrom
	mountRoot
	mountPoint
	filesystemType
	namespaceID
	mountOptionsText
	filesystemSubtype
	superSource

	everyField  = superBasic | mountBasic | propagateFrom | mountRoot | mountPoint | filesystemType | mountOptionsText | superSource
	maxMountLen = 64 << 10
)

// statMounted is the beginning of struct statmount; texts are offsets into the buffer, from textsBegin on.
type statMounted struct {
	_, Options                                                uint32
	Mask                                                      uint64
	Major, Minor                                              uint32
	_                                                         uint64
	SuperFlags, FSType                                        uint32
	_, _                                                      uint64
	ID, Parent                                                uint32
	Attributes, Propagation, PeerGroup, Master, PropagateFrom uint64
	Root, Point                                               uint32
	_                                                         uint64
	Subtype, Source                                           uint32
}

const textsBegin = 512

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
	if err := statMount(id, everyField|filesystemSubtype, buffer); err != nil {
		return Mount{}, err
	}
	var s statMounted
	if _, err := binary.Decode(buffer, binary.NativeEndian, &s); err != nil {
		return Mount{}, fmt.Errorf("statmount: %w", err)
	}
	text := func(at uint32) string {
		from := buffer[min(textsBegin+int(at), len(buffer)):]
		return string(from[:max(0, bytes.IndexByte(from, 0))])
	}
	// A filesystem without options of its own has no text of them, and not every mount gets its changes from another.
	const needed = everyField &^ (mountOptionsText | propagateFrom)
	if s.Mask&needed != needed {
		return Mount{}, fmt.Errorf("statmount: the kernel knows %#x of the fields %#x", s.Mask, needed)
	}
	m := Mount{ID: int(s.ID), Parent: int(s.Parent), Major: int(s.Major), Minor: int(s.Minor), Root: text(s.Root),
		Point: text(s.Point), FSType: text(s.FSType), Source: text(s.Source), Options: mountOptions(s.Attributes),
		SuperOptions: superOptions(s.SuperFlags)}
	if s.Mask&filesystemSubtype != 0 && text(s.Subtype) != "" {
		m.FSType += "." + text(s.Subtype)
	}
	if s.Mask&mountOptionsText != 0 && text(s.Options) != "" {
		m.SuperOptions = append(m.SuperOptions, splitOptions(text(s.Options))...)
	}
	var tags []string
	if s.Propagation&unix.MS_SHARED != 0 {
		tags = append(tags, fmt.Sprintf("shared:%d", s.PeerGroup))
	}
	if s.Propagation&unix.MS_SLAVE != 0 {
		tags = append(tags, fmt.Sprintf("master:%d", s.Master))
		if s.PropagateFrom != 0 && s.PropagateFrom != s.Master {
			tags = append(tags, fmt.Sprintf("propagate_from:%d", s.PropagateFrom))
		}
	}
	if s.Propagation&unix.MS_UNBINDABLE != 0 {
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
func superOptions(flags uint32) []string {
	options := []string{"rw"}
	if flags&unix.MS_RDONLY != 0 {
		options[0] = "ro"
	}
	return chosen(options, uint64(flags), []named{{unix.MS_SYNCHRONOUS, "sync"}, {unix.MS_DIRSYNC, "dirsync"}, {unix.MS_LAZYTIME, "lazytime"}})
}

func chosen(options []string, bits uint64, of []named) []string {
	for _, o := range of {
		if bits&o.bit != 0 {
			options = append(options, o.name)
		}
	}
	return options
}
