package inside

import (
	native "encoding/binary"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// TestMachineCheck: a processor corrects its own errors, which is information, and does so ten times.
func TestMachineCheck(t *testing.T) {
	a := machine(t)
	put(t, "/sys/devices/system/machinecheck/machinecheck0/check_interval", "1") // seconds between polls of the kernel
	of := func(severity string) func(believed) bool {
		return func(f believed) bool {
			return f.Reason == "MachineCheckCorrected" && f.Subject.Kind == "cpu" && f.Subject.Name == "1" &&
				f.Severity == severity
		}
	}
	// valid, enabled, with an address: a memory read
	correct := func() { monitor(t, "mce 1 5 0x9c00000000000090 0 0x1000 0x8c") }
	correct()
	a.awaitFound("kernel-log", of("info"), true)
	for range 10 {
		time.Sleep(3 * time.Second) // an earlier one would belong to the previous error
		correct()
	}
	a.awaitFound("kernel-log", of("warning"), true)
}

// TestMachineMemory: a page of a process is damaged, first by a test interface, which can be undone, then by a report
// of the memory controller. The process that touches it is killed, the others continue, and it is reported until the
// next boot.
func TestMachineMemory(t *testing.T) {
	a := machine(t)
	const poison = 100 // MADV_HWPOISON
	page, address := somePage(t)
	if err := syscall.Madvise(page, poison); err != nil {
		t.Fatal(err)
	}
	a.awaitReason("memory-corrupted", "MemoryCorrupted", "", true)
	mustDie(t, page)
	put(t, "/sys/kernel/debug/hwpoison/unpoison-pfn", fmt.Sprint(address/uint64(os.Getpagesize())))
	a.awaitReason("memory-corrupted", "", "", false)

	page, address = somePage(t)
	// Uncorrected, signalled, recoverable: the memory controller found it while it scrubbed the memory. To all
	// processors.
	monitor(t, fmt.Sprintf("mce -b 0 8 0xbd000000000000c0 0x5 %#x 0x8c", address))
	a.awaitReason("memory-corrupted", "MemoryCorrupted", "", true)
	a.awaitReason("kernel-taint", "MachineCheckOccurred", "", true)
	mustDie(t, page)
	for _, f := range a.status().Findings {
		if f.Severity == "fatal" {
			t.Errorf("the kernel took the page out of use, and the node goes on: %+v", f)
		}
	}
}

// somePage returns a page of memory, and its physical address.
func somePage(t *testing.T) (page []byte, address uint64) {
	t.Helper()
	size := os.Getpagesize()
	page, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_LOCKED)
	if err != nil {
		t.Fatal(err)
	}
	page[0] = 1
	pages, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	entry := make([]byte, 8)
	if _, err := pages.ReadAt(entry, int64(uintptr(unsafe.Pointer(&page[0]))/uintptr(size)*8)); err != nil {
		t.Fatal(err)
	}
	frame := native.LittleEndian.Uint64(entry) & (1<<55 - 1)
	if frame == 0 {
		t.Fatalf("the page is nowhere: %x", entry)
	}
	return page, frame * uint64(size)
}

// mustDie touches a damaged page: the kernel kills every process that does not handle the SIGBUS.
func mustDie(t *testing.T, page []byte) {
	t.Helper()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() == nil {
			t.Error("what touched the page goes on")
		}
	}()
	page[0]++
}
