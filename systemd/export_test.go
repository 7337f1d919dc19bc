package systemd

// DialLogindPatient is DialLogind with a patience of the test's own.
var DialLogindPatient = dialLogind
