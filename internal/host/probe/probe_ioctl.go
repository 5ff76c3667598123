package probe

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// The probes of disks. Each sends a fixed set of commands that only read a device's own data: none of them writes,
// resets, or spins up a sleeping disk. ProbeAnswer.Data is the device's answer.
const (
	// ProbeNVMeHealth reads the SMART / health information log (page 02h, 512 bytes) of a controller, /dev/nvme0.
	ProbeNVMeHealth ProbeOp = "nvme-health"
	// ProbeNVMeEBS reads the first 96 bytes of the statistics (vendor's log page D0h) of an Amazon EBS volume,
	// /dev/nvme0.
	ProbeNVMeEBS ProbeOp = "nvme-ebs"
	// ProbeATAHealth asks an ATA disk, /dev/sda, through SAT (ATA PASS-THROUGH 16): the sense data of CHECK POWER MODE
	// (32 bytes); and, only if it does not sleep, those of SMART RETURN STATUS (32), SMART READ DATA (512) and SMART
	// READ THRESHOLDS (512). Data that the disk does not have is left zero.
	ProbeATAHealth ProbeOp = "ata-health"
	// ProbeSCSIHealth asks a SCSI disk, /dev/sda, for its log pages: the list of supported pages (page 00h, 256 bytes)
	// and, only if that contains it, the informational exceptions (page 2Fh, 256 bytes).
	ProbeSCSIHealth ProbeOp = "scsi-health"
	// ProbeThinPools asks the device mapper, /dev/mapper/control, for the status and table of all thin pools: lines of
	// "major:minor", a tab, the status, a tab, the table.
	ProbeThinPools ProbeOp = "thin-pools"
	// ProbeMultipath asks the device mapper for the status of all multipath devices: lines of "major:minor", a tab, the
	// status.
	ProbeMultipath ProbeOp = "multipath"
)

// withDevice opens a device node for reading. O_NONBLOCK keeps drives with removable media from waiting for a medium.
func withDevice(path string, ask func(fd int) ([]byte, error)) (ProbeAnswer, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return refusal(err)
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return refusal(err)
	}
	if kind := stat.Mode & unix.S_IFMT; kind != unix.S_IFBLK && kind != unix.S_IFCHR {
		return ProbeAnswer{}, errors.New("is no device")
	}
	data, err := ask(fd)
	if err != nil {
		return refusal(err)
	}
	return ProbeAnswer{Data: data}, nil
}

func ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// nvmeCommand is struct nvme_passthru_cmd of <linux/nvme_ioctl.h>.
type nvmeCommand struct {
	opcode, flags uint8
	_             uint16
	namespace     uint32
	_, _          uint32
	_             uint64
	address       uint64
	_             uint32
	length        uint32
	dword10       uint32
	_, _, _, _, _ uint32
	timeoutMS     uint32 // 0: the driver's own. A shorter one would make the kernel reset the controller
	result        uint32
}

const (
	nvmeAdminCommand = 0xc0484e41 // NVME_IOCTL_ADMIN_CMD
	nvmeGetLogPage   = 0x02
	nvmeWholeDevice  = 0xffffffff
)

// nvmeLog reads a log page. A positive result of the ioctl is the status of the command: the page is not supported.
func nvmeLog(fd int, namespace uint32, page uint8, length uint32) ([]byte, error) {
	data := make([]byte, length)
	command := nvmeCommand{
		opcode: nvmeGetLogPage, namespace: namespace, length: length,
		address: uint64(uintptr(unsafe.Pointer(&data[0]))),
		dword10: uint32(page) | (length/4-1)<<16,
	}
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), nvmeAdminCommand, uintptr(unsafe.Pointer(&command)))
	switch {
	case errno != 0:
		return nil, errno
	case status != 0:
		return nil, unix.EOPNOTSUPP
	}
	return data, nil
}

// nvmeEBS reads the complete page, as Amazon's own tool does, and leaves out its histograms.
func nvmeEBS(fd int) ([]byte, error) {
	data, err := nvmeLog(fd, 1, 0xd0, 4096)
	if err != nil {
		return nil, err
	}
	return data[:96], nil
}

func describeMapped(kind string, flags ...uint32) func(fd int) ([]byte, error) {
	return func(fd int) ([]byte, error) { return describe(fd, kind, flags) }
}

// describe returns a line for each mapped device of a kind: its number and the text for each flag, with tabs between
// them.
func describe(fd int, kind string, flags []uint32) ([]byte, error) {
	list, err := deviceMapper(fd, unix.DM_LIST_DEVICES, 0, 0)
	if err != nil {
		return nil, err
	}
	var out []byte
devices:
	for _, device := range mappedDevices(list) {
		line := hosterr.Device(device)
		for i, flag := range flags {
			text, err := mappedText(fd, device, kind, flag)
			if errors.Is(err, unix.ENXIO) || err == nil && text == "" && i == 0 { // removed meanwhile, or of another kind
				continue devices
			}
			if err != nil {
				return nil, err
			}
			line += "\t" + text
		}
		out = append(out, line+"\n"...)
	}
	return out, nil
}
