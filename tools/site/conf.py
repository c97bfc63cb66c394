"""Settings of Sphinx for the site that `build.py` makes."""

project = "Tabular data to Keras at the speed of the hardware"
html_title = "tutorlib"
author = "the authors of tutorlib"
root_doc = "README"
exclude_patterns = ["tests", ".github"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# Lessons: executed before, shown as they ran. What libraries write to stderr belongs on no page.
nb_execution_mode = "off"
nb_output_stderr = "remove"
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]

# Reference: docstrings in Google style, in which `name` is code.
default_role = "code"
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say types with shapes and units
toc_object_entries_show_parents = "hide"  # `map()`, not `KerasSequenceLoader.map()`
napoleon_google_docstring = True
napoleon_use_ivar = True  # a property that `Attributes` lists too is described once
napoleon_custom_sections = [("Source", "notes")]

html_theme = "sphinx_book_theme"
html_theme_options = {
    "show_toc_level": 2,
    "home_page_in_toc": True,
    "navbar_persistent": [],  # the side bar has a search field
}
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["style.css"]
