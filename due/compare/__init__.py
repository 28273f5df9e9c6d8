"""Methods side by side on one data set; the names that `due compare --help` shows."""

CLASS_DATA = ("digits", "moons", "wine", "breast-cancer")
VALUE_DATA = (
    *("diabetes", "cosines", "bostonHousing", "concrete", "energy", "power-plant"),
    *("wine-quality-red", "yacht"),
)
CLASSIFIER_NAMES = (
    *("softmax", "due", "ensemble", "mc-dropout", "duq", "sngp", "svdkl", "svdkl-free"),
    *("gpdnn", "ddu"),
)
REGRESSOR_NAMES = (
    *("network", "due", "ensemble", "mc-dropout", "sngp", "svdkl", "svdkl-free", "exact-gp"),
)
