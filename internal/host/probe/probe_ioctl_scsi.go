package probe

import (
	"errors"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// scsiIO is struct sg_io_hdr of <scsi/sg.h>.
type scsiIO struct {
	interfaceID   int32
	direction     int32
	commandLength uint8
	senseLength   uint8
	_             uint16
	dataLength    uint32
	data          unsafe.Pointer
	command       unsafe.Pointer
	sense         unsafe.Pointer
	timeoutMS     uint32
	flags         uint32
	_             int32
	_             unsafe.Pointer
	status        uint8
	_, _          uint8
	senseWritten  uint8
	hostStatus    uint16
	driverStatus  uint16
	_             int32
	_, info       uint32
}

const (
	sgIO      = 0x2285
	sgNone    = -1 // no data
	sgFromDev = -3
	// sgTimeout is deliberately long: after a timeout, the kernel's error handling resets buses. It is sg's own
	// default.
	sgTimeout      = 60_000
	checkCondition = 0x02
	senseSize      = 32
)

// scsiCommand sends a command and returns its sense data, empty if there is none. EIO: the command did not reach the
// disk; EOPNOTSUPP: the disk does not know it.
func scsiCommand(fd int, command, data []byte) (sense []byte, err error) {
	sense = make([]byte, senseSize)
	header := scsiIO{
		interfaceID: 'S', direction: sgNone, commandLength: uint8(len(command)), senseLength: senseSize, //nolint:gosec // at most 16
		command: unsafe.Pointer(&command[0]), sense: unsafe.Pointer(&sense[0]), timeoutMS: sgTimeout,
	}
	if len(data) > 0 {
		header.direction, header.dataLength, header.data = sgFromDev, uint32(len(data)), unsafe.Pointer(&data[0]) //nolint:gosec // at most 512
	}
	err = ioctl(fd, sgIO, unsafe.Pointer(&header))
	runtime.KeepAlive(command)
	runtime.KeepAlive(data)
	switch {
	case err != nil:
		return nil, err
	case header.hostStatus != 0:
		return nil, unix.EIO
	case header.status == checkCondition && senseKey(sense) == illegalRequest:
		return nil, unix.EOPNOTSUPP
	case header.status != 0 && header.status != checkCondition:
		return nil, unix.EBUSY
	}
	return sense, nil
}

const illegalRequest = 0x5

// senseKey returns the sense key of the fixed (70h) and descriptor (72h) formats.
func senseKey(sense []byte) byte {
	switch sense[0] & 0x7f {
	case 0x70, 0x71:
		return sense[2] & 0xf
	case 0x72, 0x73:
		return sense[1] & 0xf
	}
	return 0
}

// ATARegisters are the registers after an ATA command.
type ATARegisters struct{ Error, Count, LBAMid, LBAHigh, Status byte }

// ParseATASense finds the registers in sense data: the ATA Status Return descriptor (SAT-5 12.2.6), or the fixed
// format, which some kernels and adapters use instead (SAT-5 12.2.7).
func ParseATASense(sense []byte) (ATARegisters, bool) {
	if len(sense) < 22 {
		return ATARegisters{}, false
	}
	switch sense[0] & 0x7f {
	case 0x72:
		d := sense[8:22]
		if d[0] != 0x09 || d[1] < 0x0c {
			return ATARegisters{}, false
		}
		return ATARegisters{Error: d[3], Count: d[5], LBAMid: d[9], LBAHigh: d[11], Status: d[13]}, true
	case 0x70:
		const ataInformation, aboutATA = 0x00, 0x1d // ASC and ASCQ "ATA PASS-THROUGH INFORMATION AVAILABLE"
		if sense[12] != ataInformation || sense[13] != aboutATA {
			return ATARegisters{}, false
		}
		return ATARegisters{Error: sense[3], Status: sense[4], Count: sense[6], LBAMid: sense[10], LBAHigh: sense[11]},
			true
	}
	return ATARegisters{}, false
}

// Asleep reports whether the registers after CHECK POWER MODE mean standby: any access would spin the disk up.
func (r ATARegisters) Asleep() bool { return r.Count == 0x00 || r.Count == 0x01 }

// ATA commands and SMART subcommands (ACS-4).
const (
	ataCheckPowerMode  = 0xe5
	ataSMART           = 0xb0
	smartReadData      = 0xd0
	smartReadThreshold = 0xd1
	smartReturnStatus  = 0xda
)

// ataHealth queries SMART only if the disk does not sleep. It does not enable SMART if that is absent or disabled.
func ataHealth(fd int) ([]byte, error) {
	out := make([]byte, 0, 2*senseSize+1024)
	power, err := scsiCommand(fd, ataPassThrough(ataCheckPowerMode, 0, 0), nil)
	if err != nil {
		return nil, err
	}
	out = append(out, power...)
	if registers, ok := ParseATASense(power); !ok || registers.Asleep() {
		return out, nil
	}
	status, err := scsiCommand(fd, ataPassThrough(ataSMART, smartReturnStatus, 0), nil)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EIO) {
		return nil, err
	}
	if err != nil {
		status = make([]byte, senseSize)
	}
	out = append(out, status...)
	for _, page := range []byte{smartReadData, smartReadThreshold} {
		data := make([]byte, 512)
		sense, err := scsiCommand(fd, ataPassThrough(ataSMART, page, 1), data)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EIO) {
			return nil, err
		}
		if err != nil || senseKey(sense) != 0 && senseKey(sense) != recoveredError {
			clear(data)
		}
		out = append(out, data...)
	}
	return out, nil
}

const recoveredError = 0x1 // SAT reports registers with it even without an error

// ataPassThrough builds ATA PASS-THROUGH (16) (SAT-5 12.2.2.3) for a 28-bit command without data, or for one that reads
// the given number of 512-byte blocks. SMART requires 4Fh and C2h in the LBA registers.
func ataPassThrough(command, feature, blocks byte) []byte {
	const (
		passThrough16     = 0x85
		nonData, pioIn    = 3 << 1, 4 << 1
		wantRegisters     = 1 << 5
		fromDevice        = 1 << 3
		inBlocks          = 1 << 2
		lengthIsInCount   = 2
		smartMid, smartHi = 0x4f, 0xc2
	)
	cdb := make([]byte, 16)
	cdb[0], cdb[4], cdb[6], cdb[14] = passThrough16, feature, blocks, command
	cdb[1], cdb[2] = nonData, wantRegisters
	if blocks > 0 {
		cdb[1], cdb[2] = pioIn, fromDevice|inBlocks|lengthIsInCount
	}
	if command == ataSMART {
		cdb[10], cdb[12] = smartMid, smartHi
	}
	return cdb
}

// scsiHealth reads the informational exceptions only if the disk reports that it has them.
func scsiHealth(fd int) ([]byte, error) {
	const informationalExceptions = 0x2f
	supported, err := logSense(fd, 0x00)
	if err != nil {
		return nil, err
	}
	count := min(int(supported[3]), len(supported)-4)
	if supported[2] != 0 || !slices.Contains(supported[4:4+count], informationalExceptions) {
		return supported, nil
	}
	page, err := logSense(fd, informationalExceptions)
	if err != nil {
		return nil, err
	}
	return append(supported, page...), nil
}

// logSense reads the current cumulative values of a log page (SPC-4 6.7).
func logSense(fd int, page byte) ([]byte, error) {
	const operation, cumulative, length = 0x4d, 1 << 6, 252
	data := make([]byte, 256)
	cdb := []byte{operation, 0, cumulative | page, 0, 0, 0, 0, 0, length, 0}
	sense, err := scsiCommand(fd, cdb, data[:length])
	if err != nil {
		return nil, err
	}
	if key := senseKey(sense); key != 0 && key != recoveredError {
		return nil, unix.EIO
	}
	if data[0]&0x3f != page {
		return nil, unix.EBADMSG
	}
	return data, nil
}
