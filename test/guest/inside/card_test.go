package inside

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

const guestCard = "guest0"

// flap takes the carrier of the card away for a short time. The card's attributes are new after that.
func flap(t *testing.T) {
	t.Helper()
	setParameter(t, "guest_card", "carrier", "0")
	eventually(t, "lost carrier", func() bool { return read("/sys/class/net/"+guestCard+"/operstate") == "down" })
	setParameter(t, "guest_card", "carrier", "1")
	eventually(t, "carrier", func() bool { return read("/sys/class/net/"+guestCard+"/operstate") == "up" })
}

// TestCard: a network card comes back in half duplex, or slower, loses its link, and flaps; it stops sending; and it is
// removed while the kernel holds a reference to it.
func TestCard(t *testing.T) {
	needGuest(t)
	t.Parallel()
	insert(t, "guest_card")
	const settings = "checks: {link-state: {every: 5s, flaps: 8}, network-errors: {every: 5s}, kernel-log: {every: " +
		"5s, rules: {unregister-netdevice: {expiry: 20s}}}}\n"
	a, stop := start(t, t.TempDir(), settings)
	defer stop()
	run(t, "ip", "link", "set", guestCard, "up")
	flap(t)
	time.Sleep(10 * time.Second) // the check observes its best values
	setParameter(t, "guest_card", "rx_packets", "2000")
	setParameter(t, "guest_card", "rx_crc_errors", "1000")
	for _, step := range []struct{ fullDuplex, speed, reason string }{
		{"0", "10000", "LinkHalfDuplex"},
		{"1", "1000", "LinkSpeedReduced"},
		{"1", "10000", ""},
	} {
		setParameter(t, "guest_card", "full_duplex", step.fullDuplex)
		setParameter(t, "guest_card", "speed", step.speed)
		flap(t)
		a.awaitReason("link-state", step.reason, guestCard, step.reason != "")
	}
	setParameter(t, "guest_card", "carrier", "0")
	a.awaitReason("link-state", "LinkDown", guestCard, true)
	setParameter(t, "guest_card", "carrier", "1")
	a.awaitReason("link-state", "LinkDown", guestCard, false)

	for uptime(t) < 130*time.Second { // before that, links may come and go
		time.Sleep(time.Second)
	}
	time.Sleep(6 * time.Second)
	for range 8 {
		flap(t)
	}
	a.awaitReason("link-state", "LinkFlapping", guestCard, true)

	damaged := func(f believed) bool {
		return f.Subject.Name == guestCard && strings.Contains(f.Latest, "received packets were damaged") &&
			f.Severity == "warning"
	}
	// over five minutes
	a.awaitFound("network-errors", func(f believed) bool { return damaged(f) && f.Reason == "ReceiveErrors" }, true)
	setParameter(t, "guest_card", "rx_packets", "10000000")
	run(t, "ip", "address", "add", "192.0.2.1/24", "dev", guestCard)
	setParameter(t, "guest_card", "stuck", "1")
	_ = exec.Command("busybox", "ping", "-c", "2", "-W", "1", "192.0.2.2").Run() // no host answers
	a.awaitReason("network-errors", "NICTxTimeout", guestCard, true)
	setParameter(t, "guest_card", "stuck", "0")
	a.awaitFound("network-errors", damaged, false)

	setParameter(t, "guest_card", "hold", "35")
	run(t, "rmmod", "guest_card") // waits for the holder of the reference
	a.awaitSaid("UnregisterNetDevice", guestCard, true)
	a.awaitSaid("UnregisterNetDevice", guestCard, false)
	a.awaitReason("link-state", "", guestCard, false)
}
