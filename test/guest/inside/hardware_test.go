package inside

import (
	"bytes"
	native "encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pci returns the address of a PCI device, and of the port above it.
func pci(t *testing.T, vendor, device string) (address, port string) {
	t.Helper()
	all, _ := filepath.Glob("/sys/bus/pci/devices/*")
	for _, dir := range all {
		if read(dir+"/vendor") != vendor || read(dir+"/device") != device {
			continue
		}
		where, err := filepath.EvalSymlinks(dir)
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Base(where), filepath.Base(filepath.Dir(where))
	}
	t.Fatalf("no PCI device %s:%s", vendor, device)
	return "", ""
}

// forward makes a port pass on the errors of the devices behind it, like firmware.
func forward(t *testing.T, port string) {
	t.Helper()
	config, err := os.OpenFile("/sys/bus/pci/devices/"+port+"/config", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer config.Close()
	if _, err := config.WriteAt([]byte{2}, 0x3e); err != nil { // bridge control: SERR
		t.Fatal(err)
	}
}

// TestPCIeSwitchRecovers: a switch loses a transfer, which is reported; then its link fails, and the kernel restores
// it, after which it is no longer reported.
func TestPCIeSwitchRecovers(t *testing.T) {
	a := watch(t)
	device, port := pci(t, "0x104c", "0x8232")
	forward(t, port)
	monitor(t, "pcie_aer_inject_error switch COMP_TIME")
	a.awaitReason("pcie-errors", "PCIeUncorrectedError", device, true)
	monitor(t, "pcie_aer_inject_error switch DLP")
	eventually(t, "recovery", func() bool {
		_, after, found := strings.Cut(run(t, "dmesg"), port+": AER: Uncorrected (Fatal) error")
		return found && strings.Contains(after, port+": AER: device recovery successful")
	})
	time.Sleep(10 * time.Second)
	a.awaitFound("kernel-log", func(f believed) bool {
		return f.Subject.Name == port || f.Subject.Name == device
	}, false)
	put(t, "/sys/bus/pci/devices/"+device+"/remove", "1")
	a.awaitReason("pcie-errors", "", device, false)
}

// TestPCIeDeviceLost: a device repeats many transfers; then its link fails permanently.
func TestPCIeDeviceLost(t *testing.T) {
	a := watch(t)
	run(t, "modprobe", "aer_inject")
	device, port := pci(t, "0x1af4", "0x1044")
	forward(t, port)
	inject, err := os.OpenFile("/dev/aer_inject", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var domain, bus, slot, function uint8
	if _, err := fmt.Sscanf(device, "%x:%x:%x.%x", &domain, &bus, &slot, &function); err != nil {
		t.Fatal(err)
	}
	// struct aer_error_inj: a receiver error, which the kernel's module lets the device seem to report
	var errorWord bytes.Buffer
	_ = native.Write(&errorWord, native.LittleEndian, struct {
		Bus, Slot, Function, _ uint8
		Uncorrected, Corrected uint32
		Header                 [4]uint32
		Domain                 uint32
	}{Bus: bus, Slot: slot, Function: function, Corrected: 1})
	for range 80 {
		eventually(t, "error that is injected", func() bool {
			_, err := inject.Write(errorWord.Bytes())
			if err != nil && !errors.Is(err, syscall.EBUSY) { // the previous interrupt has not come yet
				t.Fatal(err)
			}
			return err == nil
		})
	}
	a.awaitReason("pcie-errors", "PCIeCorrectedError", device, true)
	_ = inject.Close()
	run(t, "modprobe", "-r", "aer_inject") // which hides the port's real messages
	monitor(t, "pcie_aer_inject_error lost DLP")
	a.awaitFound("kernel-log", func(f believed) bool {
		return f.Subject.Name == port && f.Reason == "PCIeFatalError" &&
			strings.Contains(f.Latest, "PCIeRecoveryFailed")
	}, true)
	put(t, "/sys/bus/pci/devices/"+device+"/remove", "1")
	a.awaitReason("pcie-errors", "", device, false)
}

// TestSensorAlarms: the sensor of a memory module reports overheating. The kernel emulates its chip, its driver is the
// real one.
func TestSensorAlarms(t *testing.T) {
	needGuest(t)
	t.Parallel()
	run(t, "modprobe", "i2c-dev")
	run(t, "modprobe", "jc42")
	run(t, "modprobe", "i2c-stub", "chip_addr=0x18")
	var bus string
	adapters, _ := filepath.Glob("/sys/bus/i2c/devices/i2c-*")
	for _, dir := range adapters {
		if strings.Contains(read(dir+"/name"), "stub") {
			bus = strings.TrimPrefix(filepath.Base(dir), "i2c-")
		}
	}
	// big-endian, like the chip
	register := func(number, value string) { run(t, "busybox", "i2cset", "-f", "-y", bus, "0x18", number, value, "w") }
	register("0x00", "0x0f00")
	register("0x05", "0xd001") // 29 °C
	put(t, "/sys/bus/i2c/devices/i2c-"+bus+"/new_device", "jc42 0x18\n")
	a, stop := start(t, t.TempDir(), "checks: {sensors: {every: 5s}}\n")
	defer stop()
	register("0x05", "0x4086") // 100 °C, above critical
	a.awaitFound("sensors", func(f believed) bool {
		return f.Reason == "TemperatureAlarm" && strings.HasPrefix(f.Subject.Name, "jc42 ")
	}, true)
	register("0x05", "0xd001")
	a.awaitReason("sensors", "", "", false)
}

// TestNVMeTimesOut: a disk does not answer in time, and the kernel gives up the request. The disk continues.
func TestNVMeTimesOut(t *testing.T) {
	a := watch(t)
	disk := nvme(t, "slow")
	put(t, "/sys/block/"+disk+"/queue/io_timeout", "3000")
	throttle(t, "slow-drive", true)
	reader := exec.Command("dd", "if=/dev/"+disk, "of=/dev/null", "bs=64k", "count=4", "iflag=direct")
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	a.awaitFound("kernel-log", func(f believed) bool {
		return strings.HasPrefix(f.Reason, "NVMe") && f.Subject.Name == strings.TrimSuffix(disk, "n1")
	}, true)
	throttle(t, "slow-drive", false)
	_ = reader.Wait()
	eventually(t, "live controller", func() bool {
		return read("/sys/class/nvme/"+strings.TrimSuffix(disk, "n1")+"/state") == "live"
	})
}
