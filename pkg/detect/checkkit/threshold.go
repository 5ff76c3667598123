package checkkit

// ClearRatio is the share of a threshold down to which a raised finding is kept.
const ClearRatio = 0.75

// Reaches reports whether value is above the share of threshold that keeps a raised finding, and whether it is below
// threshold, so that no new finding is raised. A threshold of 0 or less is switched off.
func Reaches(value, threshold float64) (found, belowRaise bool) {
	if threshold <= 0 || value < threshold*ClearRatio {
		return false, false
	}
	return true, value < threshold
}
