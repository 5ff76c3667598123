package finding

import "time"

// Policy says when a check's findings are believed. The zero value believes the first look and clears on the first
// conclusive look that no longer sees the fault.
type Policy struct {
	Raise Hold // a finding must be seen this long before it is believed
	Clear Hold // and be absent this long before it is cleared

	// BlindAfter is how long a check may learn nothing before its condition is Unknown. Zero means DefaultBlindAfter.
	BlindAfter time.Duration
}

// Hold is a demand for persistence: at least Looks consecutive looks that span at least For. Zero demands one look.
type Hold struct {
	Looks int
	For   time.Duration
}

// DefaultBlindAfter is how long a check may learn nothing before that is reported.
const DefaultBlindAfter = 5 * time.Minute
