package storage

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseDiskStats(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []diskStat
	}{
		"Linux 6.18": {
			" 254       0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n   1       0 ram0 0 0 0 0 0 0 0 0 0 0 0\n",
			[]diskStat{{major: 254, name: "vda", completed: 1 + 5 + 12 + 16, inFlight: 9, weightedMS: 11,
				sectors: 3 + 7}},
		},
		"Linux 4.14": {"8 0 sda 1 2 3 4 5 6 7 8 9 10 11\n",
			[]diskStat{{major: 8, name: "sda", completed: 6, inFlight: 9, weightedMS: 11, sectors: 10}}},
		"less than none in flight": {"8 0 sda 1 2 3 4 5 6 7 8 4294967295 10 11\n",
			[]diskStat{{major: 8, name: "sda", completed: 6, weightedMS: 11, sectors: 10}}},
		"of a newer kernel": {"8 0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 new\n",
			[]diskStat{{major: 8, name: "sda", completed: 34, inFlight: 9, weightedMS: 11, sectors: 10}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseDiskStats(c.text)
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(diskStat{})); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func FuzzDiskStats(f *testing.F) {
	f.Add(" 254       0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n")
	f.Add("8 0 sda 1 2 3 4 5 6 7 8 4294967295 10 11\n")
	f.Add("8 0 sda 1 -2\n")
	f.Fuzz(func(t *testing.T, text string) {
		stats, err := parseDiskStats(text)
		if err != nil && stats != nil {
			t.Fatal("error and value")
		}
		for _, d := range stats {
			if d.inFlight >= 1<<31 || len(d.name) > maxDeviceName+len("…") || d.major < 0 {
				t.Fatalf("%q is %+v", text, d)
			}
		}
	})
}

func FuzzPressureTotal(f *testing.F) {
	f.Add("some avg10=0.00 avg60=0.12 avg300=0.62 total=138735860\n")
	f.Fuzz(func(t *testing.T, text string) {
		if total, ok := pressureTotal(text); ok && total < 0 || !ok && total != 0 {
			t.Fatalf("%q is %v, %v", text, total, ok)
		}
	})
}
