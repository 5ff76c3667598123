package checkkit

// ClearRatio is the share of a threshold above which a finding that was raised is kept.
const ClearRatio = 0.75
